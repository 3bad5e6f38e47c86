package org.apache.beam.sdk.fn.data;

import java.io.InputStream;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import org.apache.beam.model.fnexecution.v1.BeamFnApi;
import org.apache.beam.sdk.coders.Coder;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.ByteString;

/**
 * Takes the place of Beam's class of this name in our job server, and in the task managers that get the job server's
 * jar with a job. It takes what a Python worker sends for one bundle to the stages behind.
 *
 * <p>In Beam's all of it waits on the heap until the worker has finished the bundle, and at 100 messages (a gigabyte,
 * since a worker sends 10 MB at once) both wait for each other for ever. A bundle of batch mode is all that a task has.
 * Here so much waits, and no more: whoever brings the message with which it is too much takes all of it on. Smaller
 * bundles, as in streams, are as before.
 *
 * <p>It has the methods that the parts of the job server call, and no others.
 */
public final class BeamFnDataInboundObserver
    implements CloseableFnDataReceiver<BeamFnApi.Elements> {
  private static final long MOST_WAITING_BYTES = 16L << 20;
  private static final long MILLIS_BETWEEN_LOOKS = 100;

  /** Takes elements to these endpoints. */
  public static BeamFnDataInboundObserver forConsumers(
      List<DataEndpoint<?>> dataEndpoints, List<TimerEndpoint<?>> timerEndpoints) {
    return new BeamFnDataInboundObserver(dataEndpoints, timerEndpoints);
  }

  private final Map<String, Endpoint<?>> endpoints = new HashMap<>();
  private final boolean hasTimers;
  private final Queue<BeamFnApi.Elements> waiting = new ArrayDeque<>();
  private long waitingBytes;
  private int unfinished;
  // Not guarded: who closes must not wait for a stage behind that does not take anything.
  private volatile Exception stoppedBy;

  private BeamFnDataInboundObserver(
      List<DataEndpoint<?>> dataEndpoints, List<TimerEndpoint<?>> timerEndpoints) {
    for (DataEndpoint<?> each : dataEndpoints) {
      endpoints.put(each.getTransformId(), endpointOf(each));
    }
    for (TimerEndpoint<?> each : timerEndpoints) {
      String name = timers(each.getTransformId(), each.getTimerFamilyId());
      endpoints.put(name, endpointOf(each));
    }
    hasTimers = !timerEndpoints.isEmpty();
    unfinished = endpoints.size();
  }

  /** From the thread of the connection. Throws what went wrong in a stage behind. */
  @Override
  public synchronized void accept(BeamFnApi.Elements elements) throws Exception {
    checkNotStopped();
    waiting.add(elements);
    waitingBytes += elements.getSerializedSize();
    if (waitingBytes >= MOST_WAITING_BYTES && !hasTimers) {
      takeOn();
    }
    notifyAll();
  }

  /** Takes on what waits and what comes, until all endpoints are done. Throws what went wrong in a stage behind. */
  public synchronized void awaitCompletion() throws Exception {
    takeOn();
    while (unfinished > 0) {
      wait(MILLIS_BETWEEN_LOOKS);
      takeOn();
    }
    close();
  }

  private void takeOn() throws Exception {
    try {
      while (!waiting.isEmpty()) {
        checkNotStopped();
        BeamFnApi.Elements elements = waiting.remove();
        for (BeamFnApi.Elements.Data each : elements.getDataList()) {
          take(each.getTransformId(), each.getData(), each.getIsLast());
        }
        for (BeamFnApi.Elements.Timers each : elements.getTimersList()) {
          String name = timers(each.getTransformId(), each.getTimerFamilyId());
          take(name, each.getTimers(), each.getIsLast());
        }
      }
      waitingBytes = 0;
      checkNotStopped();
    } catch (Exception error) {
      stoppedBy = error;
      waiting.clear();
      throw error;
    }
  }

  private void take(String name, ByteString encoded, boolean isLast) throws Exception {
    Endpoint<?> endpoint = endpoints.get(name);
    if (endpoint == null || endpoint.isDone) {
      throw new IllegalStateException("No endpoint " + name + " waits for elements.");
    }
    endpoint.take(encoded.newInput());
    if (isLast) {
      endpoint.isDone = true;
      unfinished--;
    }
  }

  @Override
  public void flush() {
    throw new UnsupportedOperationException();
  }

  /** Whoever waits here, or comes later, gets an exception. */
  @Override
  public void close() {
    if (stoppedBy == null) {
      stoppedBy = new IllegalStateException("Nobody waits for elements of this bundle any more.");
    }
  }

  private void checkNotStopped() throws Exception {
    if (stoppedBy != null) {
      throw stoppedBy;
    }
  }

  private static <T> Endpoint<T> endpointOf(DataEndpoint<T> data) {
    return new Endpoint<>(data.getCoder(), data.getReceiver());
  }

  private static <T> Endpoint<?> endpointOf(TimerEndpoint<T> timers) {
    return new Endpoint<>(timers.getCoder(), timers.getReceiver());
  }

  private static String timers(String transform, String family) {
    return transform + "\n" + family;
  }

  private static final class Endpoint<T> {
    private final Coder<T> coder;
    private final FnDataReceiver<T> receiver;
    private boolean isDone;

    Endpoint(Coder<T> coder, FnDataReceiver<T> receiver) {
      this.coder = coder;
      this.receiver = receiver;
    }

    void take(InputStream encoded) throws Exception {
      while (encoded.available() > 0) {
        receiver.accept(coder.decode(encoded));
      }
    }
  }
}
