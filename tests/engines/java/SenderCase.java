import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.beam.model.fnexecution.v1.BeamFnApi.Elements;
import org.apache.beam.model.fnexecution.v1.BeamFnDataGrpc;
import org.apache.beam.model.pipeline.v1.Endpoints.ApiServiceDescriptor;
import org.apache.beam.sdk.fn.server.ServerFactory;
import org.apache.beam.sdk.fn.stream.OutboundObserverFactory;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.ByteString;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.ManagedChannel;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.StatusRuntimeException;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.netty.NettyChannelBuilder;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.ClientCallStreamObserver;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.ClientResponseObserver;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.StreamObserver;

/**
 * So many messages of so many bytes on a real connection, as a task sends them to a worker. The worker takes none, and
 * leaves.
 */
public final class SenderCase {
  private static final int WINDOW_BYTES = 64 << 10;
  private static final AtomicInteger taken = new AtomicInteger();
  private static final AtomicInteger sent = new AtomicInteger();
  private static ClientCallStreamObserver<Elements> call;

  public static void main(String[] words) throws Exception {
    int bytes = Integer.parseInt(words[0]);
    int messages = Integer.parseInt(words[1]);
    Thread[] sender = new Thread[1];
    Semaphore called = new Semaphore(0);
    ApiServiceDescriptor.Builder place = ApiServiceDescriptor.newBuilder();
    ServerFactory.createDefault()
        .allocateAddressAndCreate(
            List.of(
                new BeamFnDataGrpc.BeamFnDataImplBase() {
                  @Override
                  public StreamObserver<Elements> data(StreamObserver<Elements> worker) {
                    StreamObserver<Elements> nothing = nothing();
                    StreamObserver<Elements> outbound =
                        OutboundObserverFactory.serverDirect()
                            .outboundObserverFor((StreamObserver<Elements> inbound) -> worker, nothing);
                    sender[0] = new Thread(() -> send(outbound, bytes, messages));
                    sender[0].setDaemon(true);
                    sender[0].start();
                    called.release();
                    return nothing;
                  }
                }),
            place);
    ManagedChannel channel =
        NettyChannelBuilder.forTarget(place.getUrl())
            .usePlaintext()
            .maxInboundMessageSize(Integer.MAX_VALUE)
            .flowControlWindow(WINDOW_BYTES) // a fixed one
            .build();
    BeamFnDataGrpc.newStub(channel).data(worker());
    called.acquire();
    sender[0].join(2000);
    System.out.println("before it left: " + sent + (sender[0].isAlive() ? ", waits" : ", ended"));
    call.cancel("it leaves", null);
    sender[0].join(5000);
    System.out.println("sent: " + sent + ", taken: " + taken + (sender[0].isAlive() ? ", waits" : ", ended"));
    System.out.flush();
    Runtime.getRuntime().halt(0); // a sender that waits says nothing more
  }

  private static void send(StreamObserver<Elements> outbound, int bytes, int messages) {
    ByteString data = ByteString.copyFrom(new byte[bytes]);
    Elements message = Elements.newBuilder().addData(Elements.Data.newBuilder().setData(data)).build();
    try {
      for (int number = 0; number < messages; number++) {
        outbound.onNext(message);
        sent.incrementAndGet();
      }
    } catch (StatusRuntimeException error) {
      System.out.println("to the sender: " + error.getStatus().getCode());
    } catch (Throwable error) { // say it: a thread that dies is else one that has sent all
      System.out.println("the sender ended with " + error);
    }
  }

  private static ClientResponseObserver<Elements, Elements> worker() {
    return new ClientResponseObserver<>() {
      @Override
      public void beforeStart(ClientCallStreamObserver<Elements> stream) {
        stream.disableAutoRequestWithInitial(0);
        call = stream;
      }

      @Override
      public void onNext(Elements message) {
        taken.incrementAndGet();
      }

      @Override
      public void onError(Throwable error) {}

      @Override
      public void onCompleted() {}
    };
  }

  private static StreamObserver<Elements> nothing() {
    return new StreamObserver<>() {
      @Override
      public void onNext(Elements message) {}

      @Override
      public void onError(Throwable error) {}

      @Override
      public void onCompleted() {}
    };
  }
}
