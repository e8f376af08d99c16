// The story on the stubs of protoc-gen-go and protoc-gen-go-grpc: story SOCKET URL.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "example.com/app/mcpsidecarv1"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// follower gives every update, over lost connections, until the reader has what it wants.
type follower struct {
	updates pb.UpdateServiceClient
	stream  grpc.ServerStreamingClient[pb.StreamUpdatesResponse]
	token   string
}

func (f *follower) next(ctx context.Context) *pb.StreamUpdatesResponse {
	for {
		var err error
		if f.stream == nil {
			f.stream, err = f.updates.StreamUpdates(ctx, &pb.StreamUpdatesRequest{ResumeToken: f.token}, grpc.WaitForReady(true))
		}
		if err == nil {
			var update *pb.StreamUpdatesResponse
			if update, err = f.stream.Recv(); err == nil {
				if token := update.GetResumeToken(); token != "" {
					f.token = token
				}
				return update
			}
		}
		if !errors.Is(err, io.EOF) && status.Code(err) != codes.Unavailable {
			log.Fatal(err)
		}
		f.stream = nil
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	socket, url := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// For a unix: target grpc-go sends `localhost` as :authority by itself; it takes no message above 4 MiB unless told so.
	quick := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond}
	conn := must(grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(72<<20), grpc.MaxCallSendMsgSize(72<<20))))
	defer conn.Close()
	servers, tools := pb.NewServerServiceClient(conn), pb.NewToolServiceClient(conn)

	spec := &pb.ServerSpec{
		Name:               "Story",
		Transport:          &pb.ServerSpec_Http{Http: &pb.HttpTransport{Url: url}},
		ClientCapabilities: &pb.ClientCapabilities{ElicitationForm: true},
	}
	added := must(servers.AddServer(ctx, &pb.AddServerRequest{ServerId: "story", Spec: spec}))
	fmt.Println("added", strings.TrimPrefix(added.GetServer().GetStatus().GetState().String(), "CONNECTION_STATE_"))
	listed := must(tools.ListTools(ctx, &pb.ListToolsRequest{ServerIds: []string{"story"}}))
	var names []string
	for _, tool := range listed.GetTools() {
		names = append(names, tool.GetName())
	}
	slices.Sort(names)
	fmt.Println("listed", strings.Join(names, " "))

	slow := &pb.ToolCall{ServerId: "story", ToolName: "slow"}
	events := must(tools.CallToolStream(ctx, &pb.CallToolStreamRequest{Call: slow}))
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if step := must(event, err).GetProgress(); step != nil {
			fmt.Printf("progress %v of %v: %s\n", step.GetProgress(), step.GetTotal(), step.GetMessage())
		}
		if result := event.GetResult(); result != nil {
			fmt.Println("result", result.GetContent()[0].GetText().GetText())
		}
	}
	arguments := `{"a": 12345678901234567890, "b": 1}`
	add := &pb.ToolCall{ServerId: "story", ToolName: "add", ArgumentsJson: &arguments}
	sum := must(tools.CallTool(ctx, &pb.CallToolRequest{Call: add}))
	fmt.Println("sum", sum.GetResult().GetStructuredContentJson())

	following := &follower{updates: pb.NewUpdateServiceClient(conn)}
	for following.next(ctx).GetSnapshotEnd() == nil {
	}
	fmt.Println("following")
	for {
		update := following.next(ctx)
		if update.GetSnapshotEnd() != nil {
			fmt.Println("snapshot")
		}
		if update.GetUpsert().GetServer().GetId() == "between" {
			fmt.Println("resumed between")
			break
		}
	}

	ask := &pb.ToolCall{ServerId: "story", ToolName: "ask", Detach: true}
	callID := must(tools.CallTool(ctx, &pb.CallToolRequest{Call: ask})).GetCallId()
	question := &pb.Elicitation{}
	for question.GetCallId() != callID {
		question = following.next(ctx).GetUpsert().GetElicitation()
	}
	fmt.Println("question", question.GetMessage())
	content := `{"name":"Ada"}`
	must(pb.NewElicitationServiceClient(conn).RespondElicitation(ctx, &pb.RespondElicitationRequest{
		ElicitationId: question.GetId(), Action: pb.ElicitationAction_ELICITATION_ACTION_ACCEPT, ContentJson: &content,
	}))
	waited := must(pb.NewCallServiceClient(conn).WaitCall(ctx, &pb.WaitCallRequest{CallId: callID}))
	fmt.Println("answered", waited.GetCall().GetToolResult().GetContent()[0].GetText().GetText())

	_, err := servers.GetServer(ctx, &pb.GetServerRequest{ServerId: "nowhere"})
	reason, _ := details(err)
	fmt.Println("error", name(err), reason)
	wrong := &pb.ServerSpec{Name: "Wrong", Transport: &pb.ServerSpec_Http{Http: &pb.HttpTransport{Url: "ftp://x"}}}
	_, err = servers.AddServer(ctx, &pb.AddServerRequest{Spec: wrong})
	reason, field := details(err)
	fmt.Println("violation", name(err), reason, field)
	fmt.Println("done")
}

// name is the code as the specification of gRPC writes it.
func name(err error) string {
	switch status.Code(err) {
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	default:
		return status.Code(err).String()
	}
}

func details(err error) (reason, field string) {
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = detail.GetReason()
		case *errdetails.BadRequest:
			field = detail.GetFieldViolations()[0].GetField()
		}
	}
	return reason, field
}
