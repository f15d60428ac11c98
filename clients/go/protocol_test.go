package tenure_test

import (
	"context"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"tenure.example/tenure/internal/daemontest"
	pb "tenure.example/tenure/pathlockdv1"
)

// Every RPC of the protocol is a typed method of Client, and the daemon knows it.
func TestEveryRPCIsATypedCall(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	methods := pb.File_pathlockd_v1_pathlock_proto.Services().ByName("PathLock").Methods()
	if methods.Len() == 0 {
		t.Fatal("the descriptor has no methods")
	}
	for at := range methods.Len() {
		method := methods.Get(at)
		name := string(method.Name())
		call := reflect.ValueOf(client).MethodByName(name)
		if !call.IsValid() {
			t.Errorf("Client has no method %s", name)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		in := []reflect.Value{reflect.ValueOf(ctx)}
		if !method.IsStreamingClient() {
			// The type of the argument is the type of the protocol.
			argument := reflect.New(call.Type().In(1).Elem())
			if got := argument.Interface().(proto.Message).ProtoReflect().Descriptor().FullName(); got != method.Input().FullName() {
				t.Errorf("%s takes %s", name, got)
			}
			in = append(in, argument)
		}
		out := call.Call(in)
		err, _ := out[1].Interface().(error)
		if method.IsStreamingServer() || method.IsStreamingClient() {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if got := out[0].Interface().(proto.Message).ProtoReflect().Descriptor().FullName(); err == nil && got != method.Output().FullName() {
			t.Errorf("%s returns %s", name, got)
		}
		// An empty request is refused or answered, but the method is known.
		if code := status.Code(err); code == codes.Unimplemented || code == codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// The committed code is generated from the proto file that the daemon serves.
func TestTheGeneratedCodeIsCurrent(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stream, err := reflection.NewServerReflectionClient(client).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	request := &reflection.ServerReflectionRequest{MessageRequest: &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "pathlockd.v1.PathLock"}}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	ours := protodesc.ToFileDescriptorProto(pb.File_pathlockd_v1_pathlock_proto)
	for _, bytes := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		served := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(bytes, served); err != nil {
			t.Fatal(err)
		}
		served.SourceCodeInfo = nil
		if served.GetName() == ours.GetName() {
			if !proto.Equal(served, ours) {
				t.Fatal("pathlockdv1 differs from the daemon's proto file: generate it again (clients/go/README.md)")
			}
			return
		}
	}
	t.Fatal("the daemon does not serve its proto file")
}

// A call with an effect is repeated under one key: two increments with one key are one.
func TestCallsGetAKeyOfTheirOwn(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	ctx := context.Background()
	one, err := client.IncrFencingToken(ctx, &pb.IncrFencingTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := client.IncrFencingToken(ctx, &pb.IncrFencingTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if two.Token <= one.Token {
		t.Fatalf("%d after %d: both calls had the same key", two.Token, one.Token)
	}
	keyed := &pb.IncrFencingTokenRequest{IdempotencyKey: "a key of the caller"}
	three, err := client.IncrFencingToken(ctx, keyed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.IncrFencingToken(ctx, keyed)
	if err != nil || again.Token != three.Token {
		t.Fatalf("%v after %v: %v", again, three, err)
	}
	// A call reaches the daemon although its process is replaced meanwhile.
	daemon.Kill()
	done := make(chan error, 1)
	go func() {
		_, err := client.IncrFencingToken(ctx, &pb.IncrFencingTokenRequest{})
		done <- err
	}()
	daemon.Restart(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
