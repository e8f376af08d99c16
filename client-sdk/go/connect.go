package sidecar

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// SocketEnv is the environment variable that names the socket.
const SocketEnv = "MCP_SIDECAR_SOCKET"

// MaxMessageBytes is the largest message in either direction, the daemon's own limit (limits.grpc_message_bytes).
const MaxMessageBytes = 72 << 20

const (
	firstDelay = 20 * time.Millisecond
	maxDelay   = 500 * time.Millisecond
)

// SocketCandidates says where the daemon's socket may be: $MCP_SIDECAR_SOCKET alone if it is set; else
// $XDG_RUNTIME_DIR/mcp-sidecar/app.sock and ~/.local/state/mcp-sidecar/app.sock (a daemon of this user), then
// /run/mcp-sidecar/app.sock (the host's).
func SocketCandidates() []string { return candidates(os.Getenv) }

func candidates(env func(string) string) []string {
	if named := env(SocketEnv); named != "" {
		return []string{named}
	}
	state := env("XDG_STATE_HOME")
	if home := env("HOME"); state == "" && home != "" {
		state = filepath.Join(home, ".local/state")
	}
	var found []string
	for _, directory := range []string{env("XDG_RUNTIME_DIR"), state, "/run"} {
		if directory != "" {
			found = append(found, filepath.Join(directory, "mcp-sidecar/app.sock"))
		}
	}
	return found
}

type settings struct {
	socket    string
	namespace string
	timeout   time.Duration
	deadline  time.Duration
	dial      []grpc.DialOption
}

// Option is a setting of [Connect].
type Option func(*settings)

// WithSocket sets the daemon's socket. Default: found, see [SocketCandidates].
func WithSocket(path string) Option { return func(s *settings) { s.socket = path } }

// WithNamespace sets the namespace of every request that names none. Default: the daemon's "default".
func WithNamespace(namespace string) Option { return func(s *settings) { s.namespace = namespace } }

// WithConnectTimeout sets how long [Connect] goes on trying, with a back-off of at most half a second. Default: 5 s. Zero: each
// path is tried once.
func WithConnectTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.timeout = timeout }
}

// WithDeadline sets the deadline of every request whose context has none, updates excepted. Default: none, so that only the
// daemon's own timeouts apply.
func WithDeadline(deadline time.Duration) Option { return func(s *settings) { s.deadline = deadline } }

// WithDialOptions adds options of grpc-go, for example interceptors.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// Connect connects to the daemon of this host. Later losses of the connection are repaired by the next request. It fails with a
// *[ConnectError], which names every path that was tried.
func Connect(ctx context.Context, options ...Option) (*Client, error) {
	s := settings{timeout: 5 * time.Second}
	for _, option := range options {
		option(&s)
	}
	paths := SocketCandidates()
	if s.socket != "" {
		paths = []string{s.socket}
	}
	path, err := find(ctx, paths, s.timeout)
	if err != nil {
		return nil, err
	}
	quick := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// grpc-go sends this for a unix: target by itself; it is set here so that it stays so.
		grpc.WithAuthority("localhost"),
		grpc.WithUserAgent("mcp-sidecar-client-go/" + Version),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 20 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithChainUnaryInterceptor(s.unary),
		grpc.WithChainStreamInterceptor(s.stream),
	}, s.dial...)
	conn, err := grpc.NewClient("unix:"+path, dial...)
	if err != nil {
		return nil, err
	}
	return newClient(conn, &s), nil
}

// find returns the first path behind which somebody listens.
func find(ctx context.Context, paths []string, timeout time.Duration) (string, error) {
	end := time.Now().Add(timeout)
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		failure := &ConnectError{}
		hopeless := true
		for _, path := range paths {
			dialer := net.Dialer{Timeout: max(time.Until(end), firstDelay)}
			conn, err := dialer.DialContext(ctx, "unix", path)
			if err == nil {
				_ = conn.Close()
				return path, nil
			}
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			failure.Tried = append(failure.Tried, ConnectAttempt{Path: path, Err: err})
			hopeless = hopeless && errors.Is(err, fs.ErrPermission)
		}
		if hopeless || time.Now().Add(delay).After(end) {
			return "", failure
		}
		if err := pause(ctx, delay); err != nil {
			return "", err
		}
	}
}

// pause waits, or returns why the context ended.
func pause(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// jittered is between half of the bound and the bound, so that many apps do not come back at the same instant.
func jittered(bound time.Duration) time.Duration { return bound/2 + rand.N(bound/2+1) }
