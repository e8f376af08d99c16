package sidecar

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// FieldViolation is a field of a request that is not acceptable.
type FieldViolation struct {
	// Field is its path in the request message.
	Field string
	// Description says what is wrong with it, for people.
	Description string
}

// Error is what the daemon refused or failed a request with, or the loss of the connection. Find it with [errors.As].
type Error struct {
	// Code is the gRPC status code.
	Code codes.Code
	// Reason is the daemon's reason code, for example SERVER_NOT_FOUND. Codes are added over time, never renamed. Empty if
	// there is none: where the daemon was not reached, or went away.
	Reason string
	// Message says what is wrong, for people.
	Message string
	// Metadata has facts for programs, for example jsonrpc_code.
	Metadata map[string]string
	// FieldViolations are the fields that are not acceptable.
	FieldViolations []FieldViolation
	// RetryDelay says when another attempt makes sense; 0 if the daemon did not say.
	RetryDelay time.Duration

	cause error
}

// Error says what is wrong, for people.
func (e *Error) Error() string {
	what := e.Reason
	if what == "" {
		what = e.Code.String()
	}
	if len(e.FieldViolations) > 0 {
		what += " in `" + e.FieldViolations[0].Field + "`"
	}
	return what + ": " + e.Message
}

// Unwrap returns the error of gRPC.
func (e *Error) Unwrap() error { return e.cause }

// IsConnectionLost says whether the daemon could not be reached or went away, so that no answer of its own is there.
func (e *Error) IsConnectionLost() bool { return e.Reason == "" && e.Code == codes.Unavailable }

// IsRetryable says whether the same request may be sent again with a chance to succeed and without the risk that it is carried
// out twice. A lost connection never is: grpc-go does not tell whether the request was sent.
func (e *Error) IsRetryable() bool {
	switch e.Code {
	case codes.Unavailable:
		return e.Reason != "" && e.Reason != "OUTCOME_UNKNOWN"
	case codes.ResourceExhausted:
		return e.RetryDelay > 0 || e.Reason == "TOO_MANY_CALLS"
	default:
		return false
	}
}

// Reason returns the daemon's reason code of an error, or an empty string.
func Reason(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

// FromError decodes an error of a generated client; nil, and what is no status, it returns as it is.
func FromError(err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	said, ok := status.FromError(err)
	if !ok {
		return err
	}
	decoded := &Error{Code: said.Code(), Message: said.Message(), Metadata: map[string]string{}, cause: err}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			decoded.Reason = detail.GetReason()
			if len(detail.GetMetadata()) > 0 {
				decoded.Metadata = detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, one := range detail.GetFieldViolations() {
				violation := FieldViolation{Field: one.GetField(), Description: one.GetDescription()}
				decoded.FieldViolations = append(decoded.FieldViolations, violation)
			}
		case *errdetails.RetryInfo:
			decoded.RetryDelay = detail.GetRetryDelay().AsDuration()
		}
	}
	if decoded.Reason == "" && decoded.Code == codes.DeadlineExceeded {
		decoded.Reason = "DEADLINE_EXCEEDED"
	}
	return decoded
}

// ConnectAttempt is a place that was tried, and its last error.
type ConnectAttempt struct {
	// Path is where the socket was looked for; or the address.
	Path string
	// Err says why it does not work.
	Err error
}

// ConnectError says that no daemon answered at any of the paths before the time was over.
type ConnectError struct {
	// Tried has each path in the order of the search.
	Tried []ConnectAttempt
}

// Error names every path and what was wrong with it.
func (e *ConnectError) Error() string {
	tried := make([]string, 0, len(e.Tried))
	for _, attempt := range e.Tried {
		tried = append(tried, fmt.Sprintf("`%s` (%v)", attempt.Path, attempt.Err))
	}
	return "no mcp-sidecar daemon answers; tried " + strings.Join(tried, ", ")
}

// Unwrap returns the errors of all paths.
func (e *ConnectError) Unwrap() []error {
	all := make([]error, 0, len(e.Tried))
	for _, attempt := range e.Tried {
		all = append(all, attempt.Err)
	}
	return all
}

// errContract says that an answer does not follow the contract.
func errContract(what string) error {
	return fmt.Errorf("the daemon's answer does not follow the contract: %s", what)
}
