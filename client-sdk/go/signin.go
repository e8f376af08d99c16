package sidecar

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mcp-sidecar/mcp-sidecar/client-sdk/go/mcpsidecarv1"
)

// One request waits so long for the end of a sign-in.
const signInWait = 20 * time.Second

// SignInError says that a sign-in ended without success.
type SignInError struct {
	// SignIn is the sign-in.
	SignIn *pb.SignIn
}

// Error says how it ended.
func (e *SignInError) Error() string {
	return fmt.Sprintf("the sign-in at %s ended as %s %s", e.SignIn.GetServerId(), e.SignIn.GetState(), e.SignIn.GetFailure())
}

// SignIn begins a sign-in at a protected server, shows the user where to go on, and waits for the end. A nil show opens a browser
// where there is a screen, and prints the URL on standard error in any case. Without success it fails with a *[SignInError].
func (c *Client) SignIn(ctx context.Context, serverID string, show func(*pb.SignIn) error, scopes ...string) (*pb.SignIn, error) {
	if show == nil {
		show = showAndPrint
	}
	started, err := c.AuthService.StartSignIn(ctx, &pb.StartSignInRequest{ServerId: serverID, Scopes: scopes})
	if err != nil {
		return nil, err
	}
	current := started.GetSignIn()
	if err := show(current); err != nil {
		return nil, err
	}
	for current.GetState() == pb.SignInState_SIGN_IN_STATE_PENDING ||
		current.GetState() == pb.SignInState_SIGN_IN_STATE_REDEEMING {
		request := &pb.GetSignInRequest{SignInId: current.GetId(), WaitTimeout: durationpb.New(signInWait)}
		answer, err := c.AuthService.GetSignIn(ctx, request)
		if err != nil {
			return nil, err
		}
		current = answer.GetSignIn()
	}
	if current.GetState() != pb.SignInState_SIGN_IN_STATE_SUCCEEDED {
		return nil, &SignInError{SignIn: current}
	}
	return current, nil
}

func showAndPrint(signIn *pb.SignIn) error {
	if _, err := fmt.Fprintln(os.Stderr, "Sign in at:", signIn.GetAuthUrl()); err != nil {
		return err
	}
	// The URL is printed, so that a browser is a convenience.
	_, err := OpenBrowser(signIn.GetAuthUrl())
	return err
}

// OpenBrowser opens a URL in the user's browser, and says whether there was one to start. Only https: and http:.
func OpenBrowser(address string) (bool, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return false, err
	}
	if parsed.Scheme != "https" && parsed.Scheme != "http" {
		return false, fmt.Errorf("a browser is opened for https: and http: only, not for %s:", parsed.Scheme)
	}
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return false, nil
	}
	browser := exec.Command(program, parsed.String())
	if err := browser.Start(); err != nil {
		return false, nil // There is no browser, which is no failure.
	}
	go func() { _ = browser.Wait() }()
	return true, nil
}
