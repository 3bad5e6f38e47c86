package org.apache.beam.sdk.fn.stream;

import java.util.concurrent.Phaser;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.MessageLite;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.CallStreamObserver;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.ServerCallStreamObserver;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.stub.StreamObserver;

/**
 * Takes the place of Beam's class of this name in our job server, and in the task managers that get the job server's
 * jar with a job. It sends messages of several threads to a Python worker, and waits where the worker does not keep up.
 *
 * <p>Beam's looks only before every hundredth message whether it does. Until then all of them wait in direct memory, and
 * a message may have many megabytes: it holds at least one element. This one also looks before a message with which more
 * than a megabyte would be on its way. So what waits is that, and one message at most.
 *
 * <p>Of a worker that died Beam's waits for ever. This one goes on, and what it then calls knows of the end.
 *
 * <p>It has the methods that the parts of the job server call, and no others.
 */
public final class DirectStreamObserver<T> implements StreamObserver<T> {
  private static final int MOST_UNSEEN_MESSAGES = 100; // as Beam's
  private static final long MOST_UNSEEN_BYTES = 1L << 20;
  // Readiness is also looked at without being told of: the thread that tells may itself be the one that waits here.
  private static final long MILLIS_BETWEEN_LOOKS = 20;

  private final Phaser readiness;
  private final CallStreamObserver<T> worker;
  private final Object lock = new Object();
  private int unseenMessages;
  private long unseenBytes;

  /** readiness: advances when the worker takes more; once it is terminated, nothing waits. */
  public DirectStreamObserver(Phaser readiness, CallStreamObserver<T> worker) {
    this.readiness = readiness;
    this.worker = worker;
  }

  /** Returns when the message is on its way. */
  @Override
  public void onNext(T message) {
    long bytes = message instanceof MessageLite ? ((MessageLite) message).getSerializedSize() : 0;
    synchronized (lock) {
      unseenMessages++;
      unseenBytes += bytes;
      if (unseenMessages > MOST_UNSEEN_MESSAGES || unseenBytes > MOST_UNSEEN_BYTES) {
        awaitReadiness();
        unseenMessages = 1;
        unseenBytes = bytes;
      }
      worker.onNext(message);
    }
  }

  private void awaitReadiness() {
    int phase = readiness.getPhase();
    while (phase >= 0 && !worker.isReady() && !isGone()) { // a negative phase: terminated
      try {
        phase = readiness.awaitAdvanceInterruptibly(phase, MILLIS_BETWEEN_LOOKS, TimeUnit.MILLISECONDS);
      } catch (TimeoutException lookAgain) {
        phase = readiness.getPhase();
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw new IllegalStateException("Interrupted before a worker took a message.", error);
      }
    }
  }

  private boolean isGone() {
    return worker instanceof ServerCallStreamObserver && ((ServerCallStreamObserver<T>) worker).isCancelled();
  }

  @Override
  public void onError(Throwable error) {
    synchronized (lock) {
      worker.onError(error);
    }
  }

  @Override
  public void onCompleted() {
    synchronized (lock) {
      worker.onCompleted();
    }
  }
}
