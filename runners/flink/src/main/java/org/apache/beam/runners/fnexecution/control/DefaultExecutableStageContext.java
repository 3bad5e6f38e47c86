package org.apache.beam.runners.fnexecution.control;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.beam.runners.fnexecution.provisioning.JobInfo;
import org.apache.beam.sdk.options.PortablePipelineOptions;
import org.apache.beam.sdk.util.construction.PipelineOptionsTranslation;
import org.apache.beam.sdk.util.construction.graph.ExecutableStage;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.Struct;
import org.apache.beam.vendor.grpc.v1p69p0.com.google.protobuf.Value;

/**
 * Takes the place of Beam's class of this name in our job server, and in the task managers that get the job server's
 * jar with a job: the Python workers of one job beside one task manager.
 *
 * <p>Beam's gives each operator that opens the next worker in turn: one worker may get all tasks of the step that has
 * most to do. This one gives the tasks of each step to the workers in turn.
 *
 * <p>It has the methods that the parts of the job server call, and no others.
 */
public final class DefaultExecutableStageContext implements ExecutableStageContext {
  private static final String WORKERS = "beam:option:sdk_worker_parallelism:v1";

  private final List<JobBundleFactory> workers = new ArrayList<>();
  private final Map<String, Integer> tasks = new HashMap<>(); // of each step, by its input

  private DefaultExecutableStageContext(JobInfo job) {
    PortablePipelineOptions options =
        PipelineOptionsTranslation.fromProto(job.pipelineOptions()).as(PortablePipelineOptions.class);
    Integer asked = options.getSdkWorkerParallelism();
    int wanted = asked == null ? 1 : asked > 0 ? asked : Runtime.getRuntime().availableProcessors() - 1; // as Beam's
    Value number = Value.newBuilder().setNumberValue(1).build();
    Struct one = job.pipelineOptions().toBuilder().putFields(WORKERS, number).build();
    JobInfo ofOne = JobInfo.create(job.jobId(), job.jobName(), job.retrievalToken(), one);
    for (int n = Math.max(1, wanted); n > 0; n--) {
      workers.add(DefaultJobBundleFactory.create(ofOne));
    }
  }

  public static DefaultExecutableStageContext create(JobInfo job) {
    return new DefaultExecutableStageContext(job);
  }

  @Override
  public StageBundleFactory getStageBundleFactory(ExecutableStage step) {
    int task;
    synchronized (tasks) {
      task = tasks.merge(step.getInputPCollection().getId(), 1, Integer::sum) - 1;
    }
    return workers.get(task % workers.size()).forStage(step); // starts the worker, if it is the first
  }

  @Override
  public void close() throws Exception {
    Exception first = null;
    for (JobBundleFactory worker : workers) {
      try {
        worker.close();
      } catch (Exception error) {
        if (first == null) {
          first = error;
        } else {
          first.addSuppressed(error);
        }
      }
    }
    if (first != null) {
      throw first;
    }
  }
}
