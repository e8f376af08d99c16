package sidecar

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	// The daemon's wish for a longer pause is followed up to here.
	maxWishedPause = 30 * time.Second
)

// ResetCause says why an update stream starts over.
type ResetCause string

const (
	// TokenExpired means that the daemon no longer keeps the position of the resume token.
	TokenExpired ResetCause = "token expired"
	// SnapshotInterrupted means that the connection was lost within a snapshot.
	SnapshotInterrupted ResetCause = "snapshot interrupted"
)

// Update is one item of [Client.Updates]. Exactly one of Reset, Server, Elicitation, Call, Sampling, Deleted, SnapshotEnd and
// Bookmark is set.
type Update struct {
	// Reset means that the stream could not go on where it was and starts over: forget everything it said, a snapshot follows.
	Reset ResetCause
	// Server is new or has changed; this is its whole new state.
	Server *pb.Server
	// Elicitation is a question that is new or has changed.
	Elicitation *pb.Elicitation
	// Call is a kept call that is new or has changed, without its outcome.
	Call *pb.Call
	// Sampling is a request for an answer of a language model that is new or has changed.
	Sampling *pb.SamplingRequest
	// Deleted is something that is gone.
	Deleted *pb.Delete
	// SnapshotEnd means that everything that existed has been sent; what follows are changes.
	SnapshotEnd bool
	// Bookmark means that nothing has happened; only the resume token has moved on.
	Bookmark bool

	// ResumeToken says where a later stream can continue; keep it once this update is handled. Empty within a snapshot, and
	// with Reset.
	ResumeToken string
	// Revision is the position of the change; it grows, with gaps.
	Revision uint64
	// CommitTime is when the change was committed.
	CommitTime time.Time
}

// Updates gives the state of everything that matches, then every change in the order of the commits, for as long as it is read.
// The request may be nil; without namespaces it is the client's.
//
// After a lost connection or a restart of the daemon it reconnects by itself, with a growing pause of at most 5 s (or what the
// daemon asks for, at most 30 s), and goes on behind the last update: nothing is missed and nothing comes twice. Where that is
// impossible it says so with a Reset. An error is the last item: of a request that can never succeed, or of the context's end.
func (c *Client) Updates(ctx context.Context, request *pb.StreamUpdatesRequest) iter.Seq2[*Update, error] {
	request, _ = proto.Clone(request).(*pb.StreamUpdatesRequest)
	if request == nil {
		request = &pb.StreamUpdatesRequest{}
	}
	if len(request.GetNamespaces()) == 0 && c.namespace != "" {
		request.Namespaces = []string{c.namespace}
	}
	return func(yield func(*Update, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		f := follower{client: c, request: proto.CloneOf(request)}
		for {
			err := f.stream(ctx, yield)
			if errors.Is(err, errStopped) {
				return
			}
			if ctx.Err() != nil {
				yield(nil, context.Cause(ctx))
				return
			}
			var refused *Error
			wish := time.Duration(0)
			if errors.As(err, &refused) {
				if refused.Reason == "RESUME_TOKEN_EXPIRED" && f.request.GetResumeToken() != "" {
					f.request.ResumeToken = ""
					f.inSnapshot = false
					if !yield(&Update{Reset: TokenExpired}, nil) {
						return
					}
					continue
				}
				if slices.Contains(final, refused.Code) {
					yield(nil, err)
					return
				}
				wish = min(refused.RetryDelay, maxWishedPause)
			}
			if f.inSnapshot {
				// An unfinished snapshot is worthless.
				f.inSnapshot = false
				if !yield(&Update{Reset: SnapshotInterrupted}, nil) {
					return
				}
			}
			bound := min(firstPause<<min(f.failures, 16), maxPause)
			f.failures++
			if err := pause(ctx, max(wish, jittered(bound))); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// final are the codes of requests that can never succeed.
var final = []codes.Code{codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
	codes.Unimplemented, codes.OutOfRange}

var errStopped = errors.New("the reader has stopped")

type follower struct {
	client *Client
	// Its resume token is that of the last update that was handed out.
	request *pb.StreamUpdatesRequest
	// Updates of an unfinished snapshot were handed out.
	inSnapshot bool
	// Failures since the last response.
	failures int
}

// stream hands out one stream to its end, and says how it ended.
func (f *follower) stream(ctx context.Context, yield func(*Update, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.client.UpdateService.StreamUpdates(ctx, f.request)
	if err != nil {
		return FromError(err)
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil // The daemon ends a stream only when it stops.
		}
		if err != nil {
			return FromError(err)
		}
		f.failures = 0
		update := updateOf(response)
		if token := response.GetResumeToken(); token == "" {
			f.inSnapshot = f.inSnapshot || update != nil
		} else {
			f.inSnapshot = false
			f.request.ResumeToken = token
		}
		if update != nil && !yield(update, nil) {
			return errStopped
		}
	}
}

// updateOf returns nil for an event of a newer contract.
func updateOf(response *pb.StreamUpdatesResponse) *Update {
	update := &Update{ResumeToken: response.GetResumeToken(), Revision: response.GetRevision()}
	if response.GetCommitTime() != nil {
		update.CommitTime = response.GetCommitTime().AsTime()
	}
	switch event := response.GetEvent().(type) {
	case *pb.StreamUpdatesResponse_Upsert:
		switch resource := event.Upsert.GetResource().(type) {
		case *pb.Upsert_Server:
			update.Server = resource.Server
		case *pb.Upsert_Elicitation:
			update.Elicitation = resource.Elicitation
		case *pb.Upsert_Call:
			update.Call = resource.Call
		case *pb.Upsert_SamplingRequest:
			update.Sampling = resource.SamplingRequest
		default:
			return nil
		}
	case *pb.StreamUpdatesResponse_Delete:
		update.Deleted = event.Delete
	case *pb.StreamUpdatesResponse_SnapshotEnd:
		update.SnapshotEnd = true
	case *pb.StreamUpdatesResponse_Bookmark:
		update.Bookmark = true
	default:
		return nil
	}
	return update
}
