// An app on the Go client: what its README does not show, against a daemon that is restarted in between.
//
// Says what it has seen, a JSON object a line, and goes on when it is told to on its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	sidecar "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go"
	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

type line = map[string]any

var input = bufio.NewScanner(os.Stdin)

func say(what line) {
	text := must(json.Marshal(what))
	fmt.Println(string(text))
}

func told(word string) {
	if !input.Scan() || input.Text() != word {
		log.Fatalf("told %q in place of %q", input.Text(), word)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func facts(err error) line {
	var refused *sidecar.Error
	if !errors.As(err, &refused) {
		log.Fatalf("no error of the daemon: %v", err)
	}
	fields := []string{}
	for _, violation := range refused.FieldViolations {
		fields = append(fields, violation.Field)
	}
	return line{"reason": refused.Reason, "code": refused.Code.String(), "fields": fields}
}

func main() {
	ctx := context.Background()
	client := must(sidecar.Connect(ctx))
	numbersAndErrors(ctx, client)
	cancelling(ctx, client)
	questions(ctx, client)
	detached(ctx, client)
	updates(ctx, client)
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
}

func numbersAndErrors(ctx context.Context, client *sidecar.Client) {
	exact := json.RawMessage(`{"big":9223372036854775807,"small":7}`)
	result := must(client.CallTool(ctx, must(sidecar.NewToolCall("demo-http", "echo", exact))))
	var decoded line
	if err := sidecar.DecodeStructured(result, &decoded); err != nil {
		log.Fatal(err)
	}
	say(line{"raw": result.GetStructuredContentJson(), "decoded": decoded})

	_, unknown := client.ServerService.GetServer(ctx, &pb.GetServerRequest{ServerId: "nobody"})
	_, wrong := client.CallTool(ctx, must(sidecar.NewToolCall("demo-http", "add", json.RawMessage("{"))))
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, late := client.CallTool(soon, must(sidecar.NewToolCall("demo-http", "slow", line{"steps": 100})))
	_, nowhere := sidecar.Connect(ctx, sidecar.WithSocket("/nowhere/app.sock"), sidecar.WithConnectTimeout(100*time.Millisecond))
	var absent *sidecar.ConnectError
	other := must(sidecar.Connect(ctx, sidecar.WithNamespace("other")))
	defer other.Close()
	_, elsewhere := other.CallTool(ctx, must(sidecar.NewToolCall("demo-http", "echo", nil)))
	say(line{"unknown": facts(unknown), "wrong": facts(wrong), "late": facts(late), "elsewhere": facts(elsewhere),
		"nowhere": errors.As(nowhere, &absent)})
}

func cancelling(ctx context.Context, client *sidecar.Client) {
	for event, err := range client.CallToolStream(ctx, must(sidecar.NewToolCall("asker", "hang", nil))) {
		if err != nil {
			log.Fatal(err)
		}
		if event.GetStarted() != nil {
			say(line{"started": true})
			told("leave")
			break
		}
	}
	say(line{"left": true})
	told("cancelled")
}

func questions(ctx context.Context, client *sidecar.Client) {
	attaching, detach := context.WithCancel(ctx)
	attached := make(chan struct{}, 8)
	failures := make(chan string, 8)
	var attempts sync.Mutex
	attempt := 0
	done := make(chan error, 1)
	go func() {
		done <- client.AnswerQuestions(attaching, &sidecar.QuestionHandlers{
			Attached: func() { attached <- struct{}{} },
			Failed:   func(err error, _ *pb.Elicitation, _ *pb.SamplingRequest) { failures <- err.Error() },
			Form: func(context.Context, *pb.Elicitation) (*sidecar.Answer, error) {
				attempts.Lock()
				defer attempts.Unlock()
				attempt++
				if attempt == 1 {
					return nil, errors.New("nobody is at home")
				}
				return &sidecar.Answer{Content: line{"name": 7}}, nil
			},
		})
	}()
	<-attached
	answers := make(chan string, 2)
	for range 2 {
		go func() {
			answers <- sidecar.TextOf(must(client.CallTool(ctx, must(sidecar.NewToolCall("asker", "ask", nil)))))
		}()
	}
	problems := []string{<-failures, <-failures}
	pending := must(client.ElicitationService.ListElicitations(ctx, &pb.ListElicitationsRequest{}))
	detach()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	say(line{"problems": problems, "pending": len(pending.GetElicitations())})

	attaching, detach = context.WithCancel(ctx)
	go func() {
		done <- client.AnswerQuestions(attaching, &sidecar.QuestionHandlers{
			Form: func(_ context.Context, question *pb.Elicitation) (*sidecar.Answer, error) {
				return &sidecar.Answer{Content: line{"name": question.GetMessage()}}, nil
			},
		})
	}()
	say(line{"asked": []string{<-answers, <-answers}})
	detach()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}

func detached(ctx context.Context, client *sidecar.Client) {
	id := must(client.DetachTool(ctx, must(sidecar.NewToolCall("demo-http", "slow", line{"steps": 1}))))
	ended := must(client.WaitCall(ctx, id))
	say(line{"state": ended.GetState().String(), "text": sidecar.TextOf(ended.GetToolResult())})
}

// updates go on over a restart of the daemon, in this stream and from its token in another one.
func updates(ctx context.Context, client *sidecar.Client) {
	token := ""
	read := func(request *pb.StreamUpdatesRequest, follow bool) []string {
		var seen []string
		request.ServerIds = []string{"demo-http", "later"}
		for update, err := range client.Updates(ctx, request) {
			if err != nil {
				log.Fatal(err)
			}
			switch {
			case update.Server != nil:
				seen = append(seen, update.Server.GetId())
			case update.Reset != "":
				seen = append(seen, "reset: "+string(update.Reset))
			case update.Deleted != nil:
				return append(seen, "deleted")
			case update.SnapshotEnd:
				seen = append(seen, "snapshotEnd")
				if follow {
					token = update.ResumeToken
					say(line{"following": true})
				}
			}
		}
		return seen
	}
	seen := read(&pb.StreamUpdatesRequest{}, true)
	again := read(&pb.StreamUpdatesRequest{ResumeToken: token}, false)
	say(line{"seen": seen, "again": again})
	for update, err := range client.Updates(ctx, &pb.StreamUpdatesRequest{ResumeToken: os.Getenv("STRANGE_TOKEN")}) {
		say(line{"strange": must(update, err).Reset})
		break
	}
}
