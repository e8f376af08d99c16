package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

// Client is a connection to the daemon; it is safe for concurrent use, and is opened again when needed.
//
// Its fields are the generated clients of all services, with the namespace filled in where a request names none and with every
// error an *[Error]; its methods are for what takes more than one request. The end of a context cancels the call at the MCP
// server too.
type Client struct {
	// ServerService registers MCP servers and keeps them connected.
	ServerService pb.ServerServiceClient
	// ToolService lists and calls tools.
	ToolService pb.ToolServiceClient
	// CallService has calls as things of their own.
	CallService pb.CallServiceClient
	// ResourceService lists and reads resources.
	ResourceService pb.ResourceServiceClient
	// PromptService lists and fills prompts.
	PromptService pb.PromptServiceClient
	// ElicitationService has the questions of servers; see [Client.AnswerQuestions].
	ElicitationService pb.ElicitationServiceClient
	// SamplingService has the requests of servers for answers of a language model.
	SamplingService pb.SamplingServiceClient
	// AuthService signs users in; see [Client.SignIn].
	AuthService pb.AuthServiceClient
	// UpdateService has the stream of changes; see [Client.Updates] for one that repairs itself.
	UpdateService pb.UpdateServiceClient

	conn      *grpc.ClientConn
	namespace string
}

func newClient(conn *grpc.ClientConn, s *settings) *Client {
	return &Client{
		ServerService:      pb.NewServerServiceClient(conn),
		ToolService:        pb.NewToolServiceClient(conn),
		CallService:        pb.NewCallServiceClient(conn),
		ResourceService:    pb.NewResourceServiceClient(conn),
		PromptService:      pb.NewPromptServiceClient(conn),
		ElicitationService: pb.NewElicitationServiceClient(conn),
		SamplingService:    pb.NewSamplingServiceClient(conn),
		AuthService:        pb.NewAuthServiceClient(conn),
		UpdateService:      pb.NewUpdateServiceClient(conn),
		conn:               conn,
		namespace:          s.namespace,
	}
}

// Close ends the connection; what is under way fails.
func (c *Client) Close() error { return c.conn.Close() }

// Conn is the connection itself, for services that have no field.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// AddHTTPServer registers a server at a URL, connects to it and reports the state it has reached. It is idempotent. A server that
// cannot be reached is registered all the same: look at the state in the answer. An empty id lets the daemon make one.
func (c *Client) AddHTTPServer(ctx context.Context, id, name, url string) (*pb.Server, error) {
	spec := &pb.ServerSpec{Name: name, Transport: &pb.ServerSpec_Http{Http: &pb.HttpTransport{Url: url}}}
	answer, err := c.ServerService.AddServer(ctx, &pb.AddServerRequest{ServerId: id, Spec: spec})
	return answer.GetServer(), err
}

// AddStdioServer does the same for a server that the daemon starts as a child process. No shell is involved.
func (c *Client) AddStdioServer(ctx context.Context, id, name, command string, args ...string) (*pb.Server, error) {
	stdio := &pb.StdioTransport{Command: command, Args: args}
	spec := &pb.ServerSpec{Name: name, Transport: &pb.ServerSpec_Stdio{Stdio: stdio}}
	answer, err := c.ServerService.AddServer(ctx, &pb.AddServerRequest{ServerId: id, Spec: spec})
	return answer.GetServer(), err
}

// ListTools returns all tools that match, from all pages, and the servers whose tools are missing or may be out of date. The
// request may be nil: all tools of the namespace.
func (c *Client) ListTools(ctx context.Context, request *pb.ListToolsRequest) ([]*pb.Tool, []*pb.ListingIssue, error) {
	request, _ = proto.Clone(request).(*pb.ListToolsRequest)
	if request == nil {
		request = &pb.ListToolsRequest{}
	}
	var tools []*pb.Tool
	var issues []*pb.ListingIssue
	for {
		page, err := c.ToolService.ListTools(ctx, request)
		if err != nil {
			return nil, nil, err
		}
		tools = append(tools, page.GetTools()...)
		issues = append(issues, page.GetIssues()...)
		next := page.GetNextPageToken()
		if next == "" {
			return tools, issues, nil
		}
		if next == request.GetPageToken() {
			return nil, nil, errContract("a page names itself as the next one")
		}
		request.PageToken = next
	}
}

// NewToolCall is a call of a tool by its identity: server id and name at the server. Arguments are anything that encoding/json
// can write, nil for none, or JSON text as a [json.RawMessage], which is sent exactly as it is.
func NewToolCall(serverID, tool string, arguments any) (*pb.ToolCall, error) {
	call := &pb.ToolCall{ServerId: serverID, ToolName: tool}
	return call, setArguments(call, arguments)
}

func setArguments(call *pb.ToolCall, arguments any) error {
	text, given, err := jsonText(arguments)
	if given && err == nil {
		call.ArgumentsJson = &text
	}
	return err
}

// jsonText takes a [json.RawMessage] as it is, which json.Marshal would change.
func jsonText(value any) (text string, given bool, err error) {
	switch value := value.(type) {
	case nil:
		return "", false, nil
	case json.RawMessage:
		return string(value), true, nil
	}
	written, err := json.Marshal(value)
	return string(written), true, err
}

// CallTool calls a tool and waits for its result, also through questions that the server asks. A tool that reports an error is a
// result with IsError; the reason UPSTREAM_ERROR is a JSON-RPC error of the server, and OUTCOME_UNKNOWN means that the call may
// have been carried out.
func (c *Client) CallTool(ctx context.Context, call *pb.ToolCall) (*pb.ToolResult, error) {
	answer, err := c.ToolService.CallTool(ctx, &pb.CallToolRequest{Call: call})
	if err != nil {
		return nil, err
	}
	if answer.GetResult() == nil && !call.GetDetach() {
		return nil, errContract("a call has no result")
	}
	return answer.GetResult(), nil
}

// DetachTool makes a call that goes on by itself, and returns its id; see [Client.WaitCall].
func (c *Client) DetachTool(ctx context.Context, call *pb.ToolCall) (string, error) {
	call = proto.CloneOf(call)
	call.Detach = true
	answer, err := c.ToolService.CallTool(ctx, &pb.CallToolRequest{Call: call})
	return answer.GetCallId(), err
}

// CallToolStream calls a tool and follows it: its events are Started, Progress, Log, InputRequired and Task, then exactly one
// Result, last. Leaving the loop cancels the call at the server, unless it is detached. An error is the last item.
func (c *Client) CallToolStream(ctx context.Context, call *pb.ToolCall) iter.Seq2[*pb.CallToolStreamResponse, error] {
	return func(yield func(*pb.CallToolStreamResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.ToolService.CallToolStream(ctx, &pb.CallToolStreamRequest{Call: call})
		for {
			var event *pb.CallToolStreamResponse
			if err == nil {
				event, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				err = errContract("the call's stream ended without a result")
			}
			if err != nil {
				yield(nil, err)
				return
			}
			// An event of a newer contract is left out.
			if event.GetEvent() != nil && !yield(event, nil) || event.GetResult() != nil {
				return
			}
		}
	}
}

// WaitCall waits for the end of a call, over restarts of the daemon too. The end of the wait does nothing to the call.
func (c *Client) WaitCall(ctx context.Context, callID string) (*pb.Call, error) {
	const mostFailures = 8
	for failures := 0; ; {
		answer, err := c.CallService.WaitCall(ctx, &pb.WaitCallRequest{CallId: callID})
		if err == nil {
			if answer.GetCall().GetEndTime() != nil {
				return answer.GetCall(), nil
			}
			failures = 0
			continue
		}
		// Waiting changes nothing, so it can be done again.
		var refused *Error
		again := errors.As(err, &refused) && (refused.IsConnectionLost() || refused.Reason == "DRAINING")
		if !again || failures == mostFailures {
			return nil, err
		}
		bound := min(firstPause<<failures, maxPause)
		failures++
		if err := pause(ctx, jittered(bound)); err != nil {
			return nil, err
		}
	}
}

// TextOf returns the text blocks of a result, a line each.
func TextOf(result *pb.ToolResult) string {
	var texts []string
	for _, block := range result.GetContent() {
		if text, ok := block.GetBlock().(*pb.ContentBlock_Text); ok {
			texts = append(texts, text.Text.GetText())
		}
	}
	return strings.Join(texts, "\n")
}

// DecodeStructured reads the structured result into a value, as [json.Unmarshal] does, but numbers in interfaces become
// [json.Number], which has all their digits.
func DecodeStructured(result *pb.ToolResult, into any) error {
	if result.GetStructuredContentJson() == "" {
		return errors.New("the result has no structured content")
	}
	decoder := json.NewDecoder(strings.NewReader(result.GetStructuredContentJson()))
	decoder.UseNumber()
	return decoder.Decode(into)
}
