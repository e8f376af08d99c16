import com.google.protobuf.Any;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.protobuf.StatusProto;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.epoll.EpollDomainSocketChannel;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.unix.DomainSocketAddress;
import java.util.Iterator;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import mcpsidecar.v1.CallOuterClass.Call;
import mcpsidecar.v1.CallOuterClass.WaitCallRequest;
import mcpsidecar.v1.CallServiceGrpc;
import mcpsidecar.v1.ElicitationOuterClass.Elicitation;
import mcpsidecar.v1.ElicitationOuterClass.ElicitationAction;
import mcpsidecar.v1.ElicitationOuterClass.RespondElicitationRequest;
import mcpsidecar.v1.ElicitationServiceGrpc;
import mcpsidecar.v1.ServerOuterClass.AddServerRequest;
import mcpsidecar.v1.ServerOuterClass.ClientCapabilities;
import mcpsidecar.v1.ServerOuterClass.GetServerRequest;
import mcpsidecar.v1.ServerOuterClass.HttpTransport;
import mcpsidecar.v1.ServerOuterClass.Server;
import mcpsidecar.v1.ServerOuterClass.ServerSpec;
import mcpsidecar.v1.ServerServiceGrpc;
import mcpsidecar.v1.ToolOuterClass.CallToolRequest;
import mcpsidecar.v1.ToolOuterClass.CallToolStreamRequest;
import mcpsidecar.v1.ToolOuterClass.CallToolStreamResponse;
import mcpsidecar.v1.ToolOuterClass.ListToolsRequest;
import mcpsidecar.v1.ToolOuterClass.Progress;
import mcpsidecar.v1.ToolOuterClass.Tool;
import mcpsidecar.v1.ToolOuterClass.ToolCall;
import mcpsidecar.v1.ToolServiceGrpc;
import mcpsidecar.v1.Update.StreamUpdatesRequest;
import mcpsidecar.v1.Update.StreamUpdatesResponse;
import mcpsidecar.v1.UpdateServiceGrpc;

/** The story on plain stubs: java Story SOCKET URL */
public class Story {
    private static final int LARGEST_MESSAGE = 72 * 1024 * 1024;

    private final ManagedChannel channel;
    private String token = "";
    private Iterator<StreamUpdatesResponse> updates;

    private Story(ManagedChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] arguments) throws Exception {
        EventLoopGroup group = new EpollEventLoopGroup(1);
        ManagedChannel channel =
                NettyChannelBuilder.forAddress(new DomainSocketAddress(arguments[0]))
                        .eventLoopGroup(group)
                        .channelType(EpollDomainSocketChannel.class)
                        .withOption(ChannelOption.SO_KEEPALIVE, null) // is for TCP
                        .overrideAuthority("localhost")
                        .maxInboundMessageSize(LARGEST_MESSAGE)
                        .usePlaintext()
                        .build();
        try {
            new Story(channel).tell(arguments[1]);
        } finally {
            channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
            group.shutdownGracefully(0, 1, TimeUnit.SECONDS);
        }
    }

    private static void say(String line) {
        System.out.println(line);
    }

    private ServerServiceGrpc.ServerServiceBlockingStub servers() {
        return ServerServiceGrpc.newBlockingStub(channel).withDeadlineAfter(20, TimeUnit.SECONDS);
    }

    private ToolServiceGrpc.ToolServiceBlockingStub tools() {
        return ToolServiceGrpc.newBlockingStub(channel).withDeadlineAfter(20, TimeUnit.SECONDS);
    }

    private static AddServerRequest server(String id, String name, String url) {
        ServerSpec spec = ServerSpec.newBuilder()
                .setName(name)
                .setHttp(HttpTransport.newBuilder().setUrl(url))
                .setClientCapabilities(ClientCapabilities.newBuilder().setElicitationForm(true))
                .build();
        return AddServerRequest.newBuilder().setServerId(id).setSpec(spec).build();
    }

    private static ToolCall.Builder call(String tool) {
        return ToolCall.newBuilder().setServerId("story").setToolName(tool);
    }

    private void tell(String url) throws Exception {
        Server added = servers().addServer(server("story", "Story", url)).getServer();
        say("added " + added.getStatus().getState().name().replace("CONNECTION_STATE_", ""));
        ListToolsRequest list = ListToolsRequest.newBuilder().addServerIds("story").build();
        say("listed " + tools().listTools(list).getToolsList().stream()
                .map(Tool::getName).sorted().collect(Collectors.joining(" ")));

        Iterator<CallToolStreamResponse> events =
                tools().callToolStream(CallToolStreamRequest.newBuilder().setCall(call("slow")).build());
        while (events.hasNext()) {
            CallToolStreamResponse event = events.next();
            if (event.hasProgress()) {
                Progress step = event.getProgress();
                say(String.format("progress %.0f of %.0f: %s", step.getProgress(), step.getTotal(), step.getMessage()));
            }
            if (event.hasResult()) {
                say("result " + event.getResult().getContent(0).getText().getText());
            }
        }
        ToolCall add = call("add").setArgumentsJson("{\"a\": 12345678901234567890, \"b\": 1}").build();
        say("sum " + tools().callTool(CallToolRequest.newBuilder().setCall(add).build())
                .getResult().getStructuredContentJson());

        next(StreamUpdatesResponse::hasSnapshotEnd);
        say("following");
        next(update -> {
            if (update.hasSnapshotEnd()) {
                say("snapshot");
            }
            return update.getUpsert().getServer().getId().equals("between");
        });
        say("resumed between");

        CallToolRequest ask = CallToolRequest.newBuilder().setCall(call("ask").setDetach(true)).build();
        String id = tools().callTool(ask).getCallId();
        Elicitation question = next(update -> update.getUpsert().getElicitation().getCallId().equals(id))
                .getUpsert().getElicitation();
        say("question " + question.getMessage());
        ElicitationServiceGrpc.newBlockingStub(channel)
                .withDeadlineAfter(20, TimeUnit.SECONDS)
                .respondElicitation(RespondElicitationRequest.newBuilder()
                        .setElicitationId(question.getId())
                        .setAction(ElicitationAction.ELICITATION_ACTION_ACCEPT)
                        .setContentJson("{\"name\":\"Ada\"}")
                        .build());
        Call call = CallServiceGrpc.newBlockingStub(channel)
                .withDeadlineAfter(20, TimeUnit.SECONDS)
                .waitCall(WaitCallRequest.newBuilder().setCallId(id).build())
                .getCall();
        say("answered " + call.getToolResult().getContent(0).getText().getText());

        try {
            servers().getServer(GetServerRequest.newBuilder().setServerId("nowhere").build());
        } catch (StatusRuntimeException error) {
            say("error " + error.getStatus().getCode() + " " + detail(error, ErrorInfo.class).getReason());
        }
        try {
            servers().addServer(server("", "Wrong", "ftp://x"));
        } catch (StatusRuntimeException error) {
            say("violation " + error.getStatus().getCode() + " " + detail(error, ErrorInfo.class).getReason() + " "
                    + detail(error, BadRequest.class).getFieldViolations(0).getField());
        }
        say("done");
    }

    /** The next update that is looked for, over lost connections. */
    private StreamUpdatesResponse next(Predicate<StreamUpdatesResponse> wanted) throws InterruptedException {
        while (true) {
            try {
                if (updates == null) {
                    StreamUpdatesRequest request = StreamUpdatesRequest.newBuilder().setResumeToken(token).build();
                    updates = UpdateServiceGrpc.newBlockingStub(channel).withWaitForReady().streamUpdates(request);
                }
                while (updates.hasNext()) {
                    StreamUpdatesResponse update = updates.next();
                    if (!update.getResumeToken().isEmpty()) {
                        token = update.getResumeToken();
                    }
                    if (wanted.test(update)) {
                        return update;
                    }
                }
            } catch (StatusRuntimeException lost) {
                Status.Code code = lost.getStatus().getCode();
                if (code != Status.Code.UNAVAILABLE && code != Status.Code.INTERNAL) {
                    throw lost;
                }
                Thread.sleep(50);
            }
            updates = null;
        }
    }

    /** A detail of a status. */
    private static <T extends com.google.protobuf.Message> T detail(StatusRuntimeException error, Class<T> kind)
            throws Exception {
        for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
            if (detail.is(kind)) {
                return detail.unpack(kind);
            }
        }
        throw new IllegalStateException("no " + kind.getSimpleName() + " in " + error.getStatus());
    }
}
