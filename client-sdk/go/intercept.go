package sidecar

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// unary fills in namespace and deadline, and decodes the error.
func (s *settings) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if _, has := ctx.Deadline(); !has && s.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.deadline)
		defer cancel()
	}
	return FromError(invoke(ctx, method, inNamespace(request, s.namespace), reply, conn, options...))
}

// stream fills in the namespace and decodes errors.
func (s *settings) stream(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, description, conn, method, options...)
	if err != nil {
		return nil, FromError(err)
	}
	return &namespaced{ClientStream: stream, namespace: s.namespace}, nil
}

type namespaced struct {
	grpc.ClientStream
	namespace string
}

func (s *namespaced) SendMsg(message any) error {
	return s.ClientStream.SendMsg(inNamespace(message, s.namespace))
}

func (s *namespaced) RecvMsg(message any) error { return FromError(s.ClientStream.RecvMsg(message)) }

// inNamespace returns a request with the namespace filled in, itself or in its call; the caller's own message stays as it is.
func inNamespace(request any, namespace string) any {
	message, ok := request.(proto.Message)
	if !ok || namespace == "" {
		return request
	}
	copied := proto.Clone(message)
	fill(copied.ProtoReflect(), namespace)
	return copied
}

func fill(message protoreflect.Message, namespace string) {
	fields := message.Descriptor().Fields()
	if field := fields.ByName("namespace"); field != nil && field.Kind() == protoreflect.StringKind {
		if message.Get(field).String() == "" {
			message.Set(field, protoreflect.ValueOfString(namespace))
		}
	} else if call := fields.ByName("call"); call != nil && message.Has(call) {
		fill(message.Get(call).Message(), namespace)
	}
}
