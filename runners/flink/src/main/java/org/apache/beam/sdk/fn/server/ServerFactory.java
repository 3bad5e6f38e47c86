package org.apache.beam.sdk.fn.server;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.beam.model.pipeline.v1.Endpoints;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.BindableService;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.Server;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.ServerInterceptors;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.netty.NettyServerBuilder;
import org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.net.HostAndPort;

/**
 * Takes the place of Beam's class of this name in our job server, and in the task managers that get the job server's
 * jar with a job. Beam's looks up the loopback address and then listens with the port alone, on all addresses. This
 * one listens on the loopback address, or on the address that a descriptor names.
 *
 * <p>It has the methods that the parts of the job server call, and no others: Beam's two kinds of epoll sockets are
 * called by nothing.
 */
public abstract class ServerFactory {
  private static final int LEAST_SECONDS_BETWEEN_PINGS = 20; // as Beam's Python workers send them

  /** Listens on a free port of the loopback address. */
  public static ServerFactory createDefault() {
    return new OnLoopback(UrlFactory.createDefault(), () -> 0);
  }

  /** The same, with other words for where that is. */
  public static ServerFactory createWithUrlFactory(UrlFactory urls) {
    return new OnLoopback(urls, () -> 0);
  }

  /** The same, with ports of the caller's choice. */
  public static ServerFactory createWithPortSupplier(Supplier<Integer> ports) {
    return new OnLoopback(UrlFactory.createDefault(), ports);
  }

  /** The same, with both. */
  public static ServerFactory createWithUrlFactoryAndPortSupplier(UrlFactory urls, Supplier<Integer> ports) {
    return new OnLoopback(urls, ports);
  }

  /** Starts a server and writes into the descriptor where it listens. */
  public abstract Server allocateAddressAndCreate(
      List<BindableService> services, Endpoints.ApiServiceDescriptor.Builder descriptor) throws IOException;

  /** Starts a server where the descriptor says. */
  public abstract Server create(List<BindableService> services, Endpoints.ApiServiceDescriptor descriptor)
      throws IOException;

  /** From an address and a port to what clients are told. */
  @FunctionalInterface
  public interface UrlFactory {
    String createUrl(String address, int port);

    static UrlFactory createDefault() {
      return (address, port) -> HostAndPort.fromParts(address, port).toString();
    }
  }

  private static final class OnLoopback extends ServerFactory {
    private final UrlFactory urls;
    private final Supplier<Integer> ports;

    OnLoopback(UrlFactory urls, Supplier<Integer> ports) {
      this.urls = urls;
      this.ports = ports;
    }

    @Override
    public Server allocateAddressAndCreate(
        List<BindableService> services, Endpoints.ApiServiceDescriptor.Builder descriptor) throws IOException {
      InetAddress loopback = InetAddress.getLoopbackAddress();
      Server server = start(services, new InetSocketAddress(loopback, ports.get()));
      // The number and not the name: at the other address of the name somebody else may listen.
      descriptor.setUrl(urls.createUrl(loopback.getHostAddress(), server.getPort()));
      return server;
    }

    @Override
    public Server create(List<BindableService> services, Endpoints.ApiServiceDescriptor descriptor)
        throws IOException {
      HostAndPort place = HostAndPort.fromString(descriptor.getUrl());
      return start(services, new InetSocketAddress(place.getHost(), place.getPort()));
    }

    private static Server start(List<BindableService> services, InetSocketAddress place) throws IOException {
      NettyServerBuilder builder =
          NettyServerBuilder.forAddress(place)
              .maxInboundMessageSize(Integer.MAX_VALUE) // the layers above bound what they send
              .permitKeepAliveTime(LEAST_SECONDS_BETWEEN_PINGS, TimeUnit.SECONDS);
      for (BindableService service : services) {
        // Services ask for the worker's id, which it sends as a header.
        builder.addService(ServerInterceptors.intercept(service, GrpcContextHeaderAccessorProvider.interceptor()));
      }
      return builder.build().start();
    }
  }
}
