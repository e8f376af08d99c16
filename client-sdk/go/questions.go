package sidecar

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

const (
	// Questions that are put to the handlers at the same time; further ones wait.
	defaultConcurrency = 16
	// For so long an answer is given again while the daemon cannot be reached.
	giveAnswerFor = time.Minute
)

// ErrLeave is what a handler returns to leave its question to somebody else.
var ErrLeave = errors.New("the question is left to somebody else")

// Answer is an answer to a question.
type Answer struct {
	// Action is what the user wants; ACCEPT is the default.
	Action pb.ElicitationAction
	// Content is what a form was filled in with: anything that encoding/json can write, or JSON text as a json.RawMessage.
	Content any
}

// Decline is the answer of a user who says no.
func Decline() *Answer { return &Answer{Action: pb.ElicitationAction_ELICITATION_ACTION_DECLINE} }

// Cancel is the answer of a user who does not decide.
func Cancel() *Answer { return &Answer{Action: pb.ElicitationAction_ELICITATION_ACTION_CANCEL} }

// QuestionHandlers has a function for each kind of question that this app can answer; what is nil it cannot. A function may take
// as long as the user does; its context ends when the question has ended without this answer. One that fails leaves its question
// pending, for another app or the next time these are attached.
type QuestionHandlers struct {
	// Form fills in a form.
	Form func(context.Context, *pb.Elicitation) (*Answer, error)
	// URL shows a URL, with its host and warnings, and opens it if the user agrees.
	URL func(context.Context, *pb.Elicitation) (*Answer, error)
	// Approval shows a call that needs consent.
	Approval func(context.Context, *pb.Elicitation) (*Answer, error)
	// Sampling asks a language model; the result is a CreateMessageResult of MCP in the same ways as Answer.Content, nil to
	// reject the request.
	Sampling func(context.Context, *pb.SamplingRequest) (any, error)
	// SamplingTools says that the model can use tools of the server, SamplingContext that context of servers can be added.
	SamplingTools, SamplingContext bool

	// Attached, if not nil, is called when the daemon knows what this app can answer, and whenever a snapshot was read again.
	Attached func()
	// Failed, if not nil, is told of a handler that failed, and of an answer that the daemon did not take; one of the
	// questions is nil. It is called by several goroutines.
	Failed func(error, *pb.Elicitation, *pb.SamplingRequest)
	// Namespaces and ServerIDs narrow what is answered. Default: the client's namespace, all servers.
	Namespaces, ServerIDs []string
	// Concurrency bounds how many questions are put to the handlers at the same time. Default: 16.
	Concurrency int
}

// AnswerQuestions answers what servers ask until the context ends, which is no error, or until that can never succeed. While it
// runs, servers are told what they can ask. It returns when no handler runs any more.
func (c *Client) AnswerQuestions(ctx context.Context, handlers *QuestionHandlers) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := handlers.Concurrency
	if limit <= 0 {
		limit = defaultConcurrency
	}
	a := answering{client: c, handlers: handlers, taken: map[string]context.CancelFunc{}, slots: make(chan struct{}, limit)}
	defer a.running.Wait()
	defer cancel()
	request := &pb.StreamUpdatesRequest{
		Namespaces: handlers.Namespaces,
		ServerIds:  handlers.ServerIDs,
		Kinds:      []pb.UpdateKind{pb.UpdateKind_UPDATE_KIND_ELICITATION, pb.UpdateKind_UPDATE_KIND_SAMPLING},
		CanAnswer: &pb.CanAnswer{
			ElicitationForm: handlers.Form != nil, ElicitationUrl: handlers.URL != nil, Approval: handlers.Approval != nil,
			Sampling:        handlers.Sampling != nil,
			SamplingTools:   handlers.Sampling != nil && handlers.SamplingTools,
			SamplingContext: handlers.Sampling != nil && handlers.SamplingContext,
		},
	}
	// The ids of a snapshot, which says by silence that all others have ended.
	snapshot := map[string]bool{}
	for update, err := range c.Updates(ctx, request) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case update.Reset != "":
			snapshot = map[string]bool{}
		case update.Elicitation != nil:
			question := update.Elicitation
			if snapshot != nil {
				snapshot[question.GetId()] = true
			}
			a.see(ctx, question.GetId(), question.GetState(), func(ctx context.Context) error { return a.elicit(ctx, question) },
				func(err error) { a.failed(err, question, nil) })
		case update.Sampling != nil:
			question := update.Sampling
			if snapshot != nil {
				snapshot[question.GetId()] = true
			}
			a.see(ctx, question.GetId(), question.GetState(), func(ctx context.Context) error { return a.sample(ctx, question) },
				func(err error) { a.failed(err, nil, question) })
		case update.Deleted != nil:
			a.ended(update.Deleted.GetId())
		case update.SnapshotEnd:
			for id := range a.taken {
				if !snapshot[id] {
					a.ended(id)
				}
			}
			snapshot = nil
			if handlers.Attached != nil {
				handlers.Attached()
			}
		}
	}
	return nil
}

// answering is used by the goroutine that reads updates, apart from the running handlers.
type answering struct {
	client   *Client
	handlers *QuestionHandlers
	// Questions that are with a handler, wait for one, or are left to others. The daemon bounds how many are open.
	taken   map[string]context.CancelFunc
	slots   chan struct{}
	running sync.WaitGroup
}

func (a *answering) ended(id string) {
	if end, is := a.taken[id]; is {
		end()
		delete(a.taken, id)
	}
}

func (a *answering) see(ctx context.Context, id string, state pb.ElicitationState, answer func(context.Context) error,
	failed func(error)) {
	if state != pb.ElicitationState_ELICITATION_STATE_PENDING {
		a.ended(id)
		return
	}
	if _, is := a.taken[id]; is {
		return
	}
	ctx, end := context.WithCancel(ctx)
	a.taken[id] = end
	a.running.Go(func() {
		select {
		case a.slots <- struct{}{}:
			defer func() { <-a.slots }()
		case <-ctx.Done():
			return
		}
		if err := answer(ctx); err != nil && !errors.Is(err, ErrLeave) && ctx.Err() == nil {
			failed(err)
		}
	})
}

func (a *answering) failed(err error, elicitation *pb.Elicitation, sampling *pb.SamplingRequest) {
	if a.handlers.Failed != nil {
		a.handlers.Failed(err, elicitation, sampling)
	}
}

func (a *answering) elicit(ctx context.Context, question *pb.Elicitation) error {
	var handle func(context.Context, *pb.Elicitation) (*Answer, error)
	switch question.GetMode() {
	case pb.ElicitationMode_ELICITATION_MODE_FORM:
		handle = a.handlers.Form
	case pb.ElicitationMode_ELICITATION_MODE_URL:
		handle = a.handlers.URL
	case pb.ElicitationMode_ELICITATION_MODE_APPROVAL:
		handle = a.handlers.Approval
	}
	if handle == nil {
		return ErrLeave
	}
	answer, err := handle(ctx, question)
	if err != nil {
		return err
	}
	if answer == nil {
		return ErrLeave
	}
	request := &pb.RespondElicitationRequest{
		Namespace: question.GetNamespace(), ElicitationId: question.GetId(), Action: answer.Action,
	}
	if request.Action == pb.ElicitationAction_ELICITATION_ACTION_UNSPECIFIED {
		request.Action = pb.ElicitationAction_ELICITATION_ACTION_ACCEPT
	}
	text, given, err := jsonText(answer.Content)
	if err != nil {
		return err
	}
	if given {
		request.ContentJson = &text
	}
	return give(ctx, func() error {
		_, err := a.client.ElicitationService.RespondElicitation(ctx, request)
		return err
	})
}

func (a *answering) sample(ctx context.Context, question *pb.SamplingRequest) error {
	if a.handlers.Sampling == nil {
		return ErrLeave
	}
	result, err := a.handlers.Sampling(ctx, question)
	if err != nil {
		return err
	}
	request := &pb.RespondSamplingRequest{
		Namespace: question.GetNamespace(), SamplingRequestId: question.GetId(),
		Action: &pb.RespondSamplingRequest_Reject{Reject: &pb.RejectSampling{}},
	}
	text, given, err := jsonText(result)
	if err != nil {
		return err
	}
	if given {
		request.Action = &pb.RespondSamplingRequest_Accept{Accept: &pb.AcceptSampling{ResultJson: text}}
	}
	return give(ctx, func() error {
		_, err := a.client.SamplingService.RespondSampling(ctx, request)
		return err
	})
}

// give gives an answer, again while the daemon cannot be reached: it counts once.
func give(ctx context.Context, answer func() error) error {
	end := time.Now().Add(giveAnswerFor)
	for delay := firstPause; ; delay = min(2*delay, maxPause) {
		err := answer()
		var refused *Error
		if err == nil || errors.As(err, &refused) && refused.Reason == "ALREADY_RESOLVED" {
			return nil // Or somebody else was faster, or this is a repetition of what counts already.
		}
		if refused == nil || refused.Code != codes.Unavailable || time.Now().Add(delay).After(end) {
			return err
		}
		if err := pause(ctx, jittered(delay)); err != nil {
			return err
		}
	}
}
