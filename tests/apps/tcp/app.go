// An app on the Go client that has an address and a token, both in its environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	sidecar "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go"
	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func toldOf(err error) string {
	if err == nil {
		log.Fatal("it is refused")
	}
	var refused *sidecar.Error
	if errors.As(err, &refused) {
		return refused.Reason
	}
	what, _, _ := strings.Cut(err.Error(), ":")
	return what
}

func main() {
	ctx := context.Background()
	token := strings.TrimSpace(string(must(os.ReadFile(os.Getenv(sidecar.TokenFileEnv)))))
	address := os.Getenv(sidecar.AddressEnv)
	client := must(sidecar.Connect(ctx))
	arguments := `{"a": 2, "b": 3}`
	add := &pb.ToolCall{ServerId: "demo", ToolName: "add", ArgumentsJson: &arguments}
	fmt.Println(must(client.CallTool(ctx, add)).GetStructuredContentJson())
	for event, err := range client.CallToolStream(ctx, &pb.ToolCall{ServerId: "demo", ToolName: "slow"}) {
		if progress := must(event, err).GetProgress(); progress != nil {
			fmt.Println("progress", progress.GetMessage())
		}
	}
	wrong := must(sidecar.Connect(ctx, sidecar.WithAddress(address), sidecar.WithToken("mcps_wrong")))
	_, _, err := wrong.ListTools(ctx, nil)
	fmt.Println(toldOf(err))
	_, err = sidecar.Connect(ctx, sidecar.WithAddress("nowhere"), sidecar.WithToken(token))
	fmt.Println(toldOf(err))
	_, err = sidecar.Connect(ctx, sidecar.WithToken("two words"))
	fmt.Println(toldOf(err))

	following := must(sidecar.Connect(ctx, sidecar.WithAddress(address), sidecar.WithToken(token)))
	for update, err := range following.Updates(ctx, nil) {
		if err != nil {
			fmt.Println("ended", toldOf(err))
			return
		}
		if update.SnapshotEnd {
			fmt.Println("following")
		}
	}
}
