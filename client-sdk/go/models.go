package sidecar

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

// ModelAPI is an API of language models.
type ModelAPI string

const (
	// OpenAIResponses is OpenAI's Responses API.
	OpenAIResponses ModelAPI = "openai-responses"
	// OpenAIChat is OpenAI's Chat Completions API, and the many that copy it.
	OpenAIChat ModelAPI = "openai-chat"
	// Anthropic is Anthropic's Messages API.
	Anthropic ModelAPI = "anthropic"
	// Gemini is the Gemini API.
	Gemini ModelAPI = "gemini"
)

type object = map[string]any

// ToModelTools returns tools in the shape of a model API, under their model names: JSON for the member "tools" of a request. No
// SDK of a provider is needed; those of most providers read it with json.Unmarshal.
func ToModelTools(api ModelAPI, tools []*pb.Tool) (json.RawMessage, error) {
	shaped := make([]object, 0, len(tools))
	for _, tool := range tools {
		schema, err := inputSchema(tool)
		if err != nil {
			return nil, fmt.Errorf("the schema of %s: %w", tool.GetModelName(), err)
		}
		one := object{"name": tool.GetModelName(), "description": tool.GetDescription()}
		if tool.GetDescription() == "" {
			one["description"] = tool.GetTitle()
		}
		switch api {
		case OpenAIResponses:
			one["type"], one["parameters"], one["strict"] = "function", schema, false
		case OpenAIChat:
			one["parameters"] = schema
			one = object{"type": "function", "function": one}
		case Anthropic:
			one["input_schema"] = schema
		case Gemini:
			one["parametersJsonSchema"] = schema
		default:
			return nil, fmt.Errorf("there is no model API %q", api)
		}
		shaped = append(shaped, one)
	}
	if api == Gemini && len(shaped) > 0 {
		return json.Marshal([]object{{"functionDeclarations": shaped}})
	}
	return json.Marshal(shaped)
}

// inputSchema is the schema of a tool's arguments; every API wants an object with properties.
func inputSchema(tool *pb.Tool) (map[string]json.RawMessage, error) {
	schema := map[string]json.RawMessage{}
	if text := tool.GetInputSchemaJson(); text != "" {
		if err := json.Unmarshal([]byte(text), &schema); err != nil {
			return nil, err
		}
	}
	schema["type"] = json.RawMessage(`"object"`)
	if _, has := schema["properties"]; !has {
		schema["properties"] = json.RawMessage(`{}`)
	}
	return schema, nil
}

// ModelCall is a model's wish to call a tool, read from whatever its API says.
type ModelCall struct {
	// API is the API that it comes from.
	API ModelAPI
	// ID names this call in the conversation; the Gemini API may give none.
	ID string
	// Name is the tool's model name.
	Name string
	// Arguments are the arguments as JSON text.
	Arguments json.RawMessage
}

// FromModelCall reads a model's tool call: the JSON of an item function_call (OpenAIResponses), of an entry of tool_calls
// (OpenAIChat), of a block tool_use (Anthropic), or of a functionCall (Gemini).
func FromModelCall(api ModelAPI, call json.RawMessage) (*ModelCall, error) {
	var said struct {
		ID        string          `json:"id"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments string          `json:"arguments"`
		Input     json.RawMessage `json:"input"`
		Args      json.RawMessage `json:"args"`
		Function  struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	if err := json.Unmarshal(call, &said); err != nil {
		return nil, err
	}
	made := &ModelCall{API: api, ID: said.ID, Name: said.Name}
	switch api {
	case OpenAIResponses:
		made.ID, made.Arguments = said.CallID, json.RawMessage(said.Arguments)
	case OpenAIChat:
		made.Name, made.Arguments = said.Function.Name, json.RawMessage(said.Function.Arguments)
	case Anthropic:
		made.Arguments = said.Input
	case Gemini:
		made.Arguments = said.Args
	default:
		return nil, fmt.Errorf("there is no model API %q", api)
	}
	if len(bytes.TrimSpace(made.Arguments)) == 0 {
		made.Arguments = json.RawMessage(`{}`)
	}
	if made.Name == "" {
		return nil, errors.New("the call names no tool")
	}
	return made, nil
}

// ToolCall is the call of the tool.
func (m *ModelCall) ToolCall() *pb.ToolCall {
	arguments := string(m.Arguments)
	return &pb.ToolCall{ModelName: m.Name, ArgumentsJson: &arguments}
}

// Answer returns a result in the shape that the call's API wants: an item function_call_output (OpenAIResponses), a message of
// the role tool (OpenAIChat), a block tool_result (Anthropic), or a part with a functionResponse (Gemini).
func (m *ModelCall) Answer(result *pb.ToolResult) (json.RawMessage, error) {
	text, err := resultText(result)
	if err != nil {
		return nil, err
	}
	switch m.API {
	case OpenAIResponses:
		return json.Marshal(object{"type": "function_call_output", "call_id": m.ID, "output": text})
	case OpenAIChat:
		return json.Marshal(object{"role": "tool", "tool_call_id": m.ID, "content": text})
	case Anthropic:
		content, err := anthropicContent(result)
		if err != nil {
			return nil, err
		}
		answer := object{"type": "tool_result", "tool_use_id": m.ID, "content": content, "is_error": result.GetIsError()}
		return json.Marshal(answer)
	case Gemini:
		member := "output"
		if result.GetIsError() {
			member = "error"
		}
		response := object{"name": m.Name, "response": object{member: text}}
		if m.ID != "" {
			response["id"] = m.ID
		}
		return json.Marshal(object{"functionResponse": response})
	default:
		return nil, fmt.Errorf("there is no model API %q", m.API)
	}
}

// forTheModel has what a model can do something about, and is told in place of a result.
var forTheModel = []string{"INVALID_FIELD", "TOOL_NOT_FOUND", "TOOL_NOT_ALLOWED", "CALL_NOT_APPROVED", "UPSTREAM_ERROR"}

// RunModelCall makes a model's tool call and returns the answer for the model. What a model can do something about (arguments
// that are refused, a tool that is not there, a call that nobody approved, an error of the server) becomes an answer that says so;
// any other failure is an error.
func (c *Client) RunModelCall(ctx context.Context, call *ModelCall) (json.RawMessage, error) {
	result, err := c.CallTool(ctx, call.ToolCall())
	if err != nil {
		if !slices.Contains(forTheModel, Reason(err)) {
			return nil, err
		}
		text := &pb.ContentBlock_Text{Text: &pb.TextContent{Text: err.Error()}}
		result = &pb.ToolResult{IsError: true, Content: []*pb.ContentBlock{{Block: text}}}
	}
	return call.Answer(result)
}

// resultText is a result as text for a model: its texts if it has nothing else, otherwise its content as MCP writes it.
func resultText(result *pb.ToolResult) (string, error) {
	if len(result.GetContent()) == 0 {
		return result.GetStructuredContentJson(), nil
	}
	content := make([]json.RawMessage, 0, len(result.GetContent()))
	textOnly := true
	for _, block := range result.GetContent() {
		_, isText := block.GetBlock().(*pb.ContentBlock_Text)
		textOnly = textOnly && isText
		written, err := MCPContent(block)
		if err != nil {
			return "", err
		}
		content = append(content, written)
	}
	if textOnly {
		return TextOf(result), nil
	}
	written, err := json.Marshal(content)
	return string(written), err
}

func anthropicContent(result *pb.ToolResult) ([]object, error) {
	if len(result.GetContent()) == 0 {
		return []object{{"type": "text", "text": result.GetStructuredContentJson()}}, nil
	}
	content := make([]object, 0, len(result.GetContent()))
	for _, block := range result.GetContent() {
		switch kind := block.GetBlock().(type) {
		case *pb.ContentBlock_Text:
			content = append(content, object{"type": "text", "text": kind.Text.GetText()})
			continue
		case *pb.ContentBlock_Image:
			switch kind.Image.GetMimeType() {
			case "image/jpeg", "image/png", "image/gif", "image/webp":
				data := base64.StdEncoding.EncodeToString(kind.Image.GetData())
				source := object{"type": "base64", "media_type": kind.Image.GetMimeType(), "data": data}
				content = append(content, object{"type": "image", "source": source})
				continue
			}
		}
		written, err := MCPContent(block)
		if err != nil {
			return nil, err
		}
		content = append(content, object{"type": "text", "text": string(written)})
	}
	return content, nil
}

// MCPContent is a block of content as MCP writes it: an object with a type.
func MCPContent(block *pb.ContentBlock) (json.RawMessage, error) {
	with := func(extra string, members object) (json.RawMessage, error) {
		all := map[string]any{}
		if extra != "" {
			var further map[string]json.RawMessage
			if err := json.Unmarshal([]byte(extra), &further); err != nil {
				return nil, err
			}
			for name, value := range further {
				all[name] = value
			}
		}
		for name, value := range members {
			if value != any("") {
				all[name] = value
			}
		}
		return json.Marshal(all)
	}
	switch kind := block.GetBlock().(type) {
	case *pb.ContentBlock_Image:
		return with(kind.Image.GetExtraJson(), object{"type": "image", "data": kind.Image.GetData(), "mimeType": kind.Image.GetMimeType()})
	case *pb.ContentBlock_Audio:
		return with(kind.Audio.GetExtraJson(), object{"type": "audio", "data": kind.Audio.GetData(), "mimeType": kind.Audio.GetMimeType()})
	case *pb.ContentBlock_ResourceLink:
		link := kind.ResourceLink
		members := object{"type": "resource_link", "uri": link.GetUri(), "name": link.GetName(), "title": link.GetTitle(),
			"description": link.GetDescription(), "mimeType": link.GetMimeType()}
		if link.Size != nil {
			members["size"] = link.GetSize()
		}
		return with(link.GetExtraJson(), members)
	case *pb.ContentBlock_Resource:
		held := kind.Resource.GetResource()
		members := object{"uri": held.GetUri(), "mimeType": held.GetMimeType()}
		switch body := held.GetBody().(type) {
		case *pb.ResourceContents_Text:
			members["text"] = body.Text
		case *pb.ResourceContents_Blob:
			members["blob"] = body.Blob
		}
		resource, err := with(held.GetExtraJson(), members)
		if err != nil {
			return nil, err
		}
		return with(kind.Resource.GetExtraJson(), object{"type": "resource", "resource": resource})
	case *pb.ContentBlock_RawJson:
		return json.RawMessage(kind.RawJson), nil
	default:
		text := block.GetText()
		return json.Marshal(object{"type": "text", "text": text.GetText()})
	}
}
