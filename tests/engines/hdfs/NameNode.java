import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A real name node and a real data node, on free ports of this machine, until the process ends. */
public class NameNode {
  /** words: a folder for the data, and the file that gets the port of WebHDFS. */
  public static void main(String[] words) throws Exception {
    Configuration configuration = new Configuration();
    configuration.set("hdfs.minidfs.basedir", words[0]);
    configuration.setInt("dfs.ls.limit", 20); // names in one answer, so that a small folder takes several
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration).numDataNodes(1).build();
    cluster.waitActive();
    Path draft = Path.of(words[1] + ".draft");
    Files.writeString(draft, Integer.toString(cluster.getNameNode().getHttpAddress().getPort()));
    Files.move(draft, Path.of(words[1]));
    Thread.currentThread().join();
  }
}
