import org.apache.beam.fn.harness.ExternalWorkerService;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.extensions.python.PythonExternalTransform;
import org.apache.beam.sdk.fn.server.GrpcFnServer;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.options.Description;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.options.PortablePipelineOptions;
import org.apache.beam.sdk.options.Validation.Required;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.values.PCollection;
import org.apache.beam.sdk.values.Row;
import org.apache.beam.sdk.values.TypeDescriptors;

/** Lines "reader,page,milliseconds" -> lines "window start,at least so many users,page". */
public final class HeavyItems {
  private static final Schema VISIT =
      Schema.builder().addStringField("reader").addStringField("page").addInt64Field("at").build();

  /** Where the pipeline reads and writes, and what answers it. */
  public interface Options extends PipelineOptions {
    @Description("Lines reader,page,milliseconds since 1970")
    @Required
    String getVisits();

    void setVisits(String path);

    @Description("Where the heavy items go")
    @Required
    String getHeavyItems();

    void setHeavyItems(String path);

    @Description("host:port of the expansion service, of a Python in which shh is installed")
    @Required
    String getExpansionService();

    void setExpansionService(String address);

    @Description("A file of `shh plan --output`")
    @Required
    String getPlan();

    void setPlan(String path);

    @Description("A private file of 32 random bytes")
    @Required
    String getNoiseKey();

    void setNoiseKey(String path);
  }

  private static Row visit(String line) {
    String[] cells = line.split(",", 3);
    return Row.withSchema(VISIT).addValues(cells[0], cells[1], Long.parseLong(cells[2])).build();
  }

  private static String line(Row found) {
    return found.getString("window_start") + "," + found.getInt64("at_least_users") + "," + found.getString("item");
  }

  public static void main(String[] arguments) throws Exception {
    PipelineOptionsFactory.register(Options.class);
    Options options = PipelineOptionsFactory.fromArgs(arguments).withValidation().as(Options.class);
    PortablePipelineOptions portable = options.as(PortablePipelineOptions.class);
    if (!"LOOPBACK".equals(portable.getDefaultEnvironmentType())) {
      run(options);
      return;
    }
    // The Java steps run in this process. Beam's own LOOPBACK begins after transforms of other languages are expanded,
    // which need to know its address.
    try (GrpcFnServer<ExternalWorkerService> worker = new ExternalWorkerService(options).start()) {
      portable.setDefaultEnvironmentType("EXTERNAL");
      portable.setDefaultEnvironmentConfig(worker.getApiServiceDescriptor().getUrl());
      run(options);
    }
  }

  private static void run(Options options) {
    Pipeline pipeline = Pipeline.create(options);
    PCollection<Row> visits =
        pipeline
            .apply("Read", TextIO.read().from(options.getVisits()))
            .apply("Visits", MapElements.into(TypeDescriptors.rows()).via(HeavyItems::visit))
            .setRowSchema(VISIT);
    PCollection<Row> found =
        visits.apply(
            "HeavyHitters",
            PythonExternalTransform.<PCollection<Row>, PCollection<Row>>from(
                    "dp_transforms.HeavyHitterRows", options.getExpansionService())
                .withKwarg("plan", options.getPlan())
                .withKwarg("noise_key", options.getNoiseKey())
                .withKwarg("user", "reader")
                .withKwarg("item", "page")
                .withKwarg("time", "at")
                .withKwarg("time_unit", "ms"));
    found
        .apply("Lines", MapElements.into(TypeDescriptors.strings()).via(HeavyItems::line))
        .apply("Write", TextIO.write().to(options.getHeavyItems()).withoutSharding());
    pipeline.run().waitUntilFinish();
  }

  private HeavyItems() {}
}
