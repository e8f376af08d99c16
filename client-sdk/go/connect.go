package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// SocketEnv is the environment variable that names the socket.
const SocketEnv = "MCP_SIDECAR_SOCKET"

// AddressEnv is the environment variable that names the daemon's address, such as 127.0.0.1:7443, where its socket cannot be
// reached.
const AddressEnv = "MCP_SIDECAR_ADDRESS"

// TokenEnv is the environment variable with the token for the address.
const TokenEnv = "MCP_SIDECAR_TOKEN"

// TokenFileEnv is the environment variable that names a file with the token.
const TokenFileEnv = "MCP_SIDECAR_TOKEN_FILE"

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
	address   string
	token     string
	namespace string
	timeout   time.Duration
	deadline  time.Duration
	dial      []grpc.DialOption
}

// Option is a setting of [Connect].
type Option func(*settings)

// WithSocket sets the daemon's socket. Default: found, see [SocketCandidates].
func WithSocket(path string) Option { return func(s *settings) { s.socket = path } }

// WithAddress sets the daemon's address, such as 127.0.0.1:7443, where its socket cannot be reached; it needs a token, and wins over
// a socket. Default: $MCP_SIDECAR_ADDRESS, unless a socket is given with an option or by $MCP_SIDECAR_SOCKET.
func WithAddress(address string) Option { return func(s *settings) { s.address = address } }

// WithToken sets the token for the address. Default: $MCP_SIDECAR_TOKEN, else what the file holds that $MCP_SIDECAR_TOKEN_FILE
// names.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

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
	if s.address == "" && s.socket == "" && os.Getenv(SocketEnv) == "" {
		s.address = os.Getenv(AddressEnv)
	}
	target, way, err := s.target(ctx)
	if err != nil {
		return nil, err
	}
	quick := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("mcp-sidecar-client-go/" + Version),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 20 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithChainUnaryInterceptor(s.unary),
		grpc.WithChainStreamInterceptor(s.stream),
	}, append(way, s.dial...)...)
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, err
	}
	return newClient(conn, &s), nil
}

// target finds the daemon: the target, and what is needed to get there.
func (s *settings) target(ctx context.Context) (string, []grpc.DialOption, error) {
	if s.address != "" {
		token, err := givenToken(s.token, os.Getenv)
		if err != nil {
			return "", nil, err
		}
		if host, port, err := net.SplitHostPort(s.address); err != nil || host == "" || port == "" {
			return "", nil, fmt.Errorf(
				"`%s` is no address of a daemon; write host and port, such as `127.0.0.1:7443`", s.address)
		}
		// Never through a proxy: the token is for the daemon.
		way := []grpc.DialOption{grpc.WithPerRPCCredentials(token), grpc.WithNoProxy()}
		_, err = find(ctx, "tcp", []string{s.address}, s.timeout)
		return s.address, way, err
	}
	paths := SocketCandidates()
	if s.socket != "" {
		paths = []string{s.socket}
	}
	path, err := find(ctx, "unix", paths, s.timeout)
	// grpc-go sends this for a unix: target by itself; it is set here so that it stays so.
	return "unix:" + path, []grpc.DialOption{grpc.WithAuthority("localhost")}, err
}

// bearer is a token, which every request brings. It is not printed.
type bearer struct{ token string }

// GetRequestMetadata is what a request brings.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity says that a loopback connection is enough.
func (bearer) RequireTransportSecurity() bool { return false }

// String and GoString keep the token from being printed.
func (bearer) String() string   { return "***" }
func (bearer) GoString() string { return "***" }

// givenToken is the token that was given, or the one of the environment.
func givenToken(token string, env func(string) string) (bearer, error) {
	if token == "" {
		token = env(TokenEnv)
	}
	if file := env(TokenFileEnv); token == "" && file != "" {
		read, err := os.ReadFile(file)
		if err != nil {
			return bearer{}, fmt.Errorf("the token cannot be read: %w", err)
		}
		token = string(read)
	}
	if token == "" {
		return bearer{}, fmt.Errorf("over TCP the daemon wants a token: give one, or set %s or %s; "+
			"`mcp-sidecar tokens create` makes one", TokenEnv, TokenFileEnv)
	}
	token = strings.TrimRight(token, "\r\n")
	invisible := func(r rune) bool { return r < '!' || r > '~' }
	if token == "" || strings.ContainsFunc(token, invisible) {
		return bearer{}, errors.New("the token is none; `mcp-sidecar tokens create` makes one")
	}
	return bearer{token}, nil
}

// find returns the first path, or address, behind which somebody listens.
func find(ctx context.Context, network string, paths []string, timeout time.Duration) (string, error) {
	end := time.Now().Add(timeout)
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		failure := &ConnectError{}
		hopeless := true
		for _, path := range paths {
			dialer := net.Dialer{Timeout: max(time.Until(end), firstDelay)}
			conn, err := dialer.DialContext(ctx, network, path)
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
