import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.beam.model.fnexecution.v1.BeamFnApi;
import org.apache.beam.sdk.coders.ByteArrayCoder;
import org.apache.beam.sdk.fn.data.BeamFnDataInboundObserver;
import org.apache.beam.sdk.fn.data.DataEndpoint;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.ByteString;

/**
 * What becomes of so many messages of so many bytes that come before anybody waits for their bundle; with a third word,
 * of a stage behind that fails.
 */
public final class ObserverCase {
  public static void main(String[] words) throws Exception {
    int bytes = Integer.parseInt(words[0]);
    int messages = Integer.parseInt(words[1]);
    boolean fails = words.length > 2;
    AtomicLong taken = new AtomicLong();
    BeamFnDataInboundObserver observer =
        BeamFnDataInboundObserver.forConsumers(
            List.of(
                DataEndpoint.create(
                    "t",
                    ByteArrayCoder.of(),
                    element -> {
                      if (fails) {
                        throw new IllegalStateException("the stage behind fails");
                      }
                      taken.addAndGet(element.length);
                    })),
            List.of());
    ByteString.Output data = ByteString.newOutput();
    ByteArrayCoder.of().encode(new byte[bytes], data); // with its length
    try {
      for (int sent = 1; sent <= messages; sent++) {
        observer.accept(
            BeamFnApi.Elements.newBuilder()
                .addData(
                    BeamFnApi.Elements.Data.newBuilder()
                        .setTransformId("t")
                        .setData(data.toByteString())
                        .setIsLast(sent == messages))
                .build());
      }
    } catch (IllegalStateException error) {
      System.out.println("to the sender: " + error.getMessage());
    }
    System.out.println("before: " + taken);
    try {
      observer.awaitCompletion();
    } catch (IllegalStateException error) {
      System.out.println("to the bundle: " + error.getMessage());
    }
    System.out.println("after: " + taken);
  }
}
