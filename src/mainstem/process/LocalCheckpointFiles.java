package mainstem;

import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import java.util.zip.CRC32;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.unsafe.Platform;

/**
 * Files of a checkpoint on this machine, as Spark's own manager leaves them: written under another name, then renamed,
 * with Hadoop's checksums beside them (`.NAME.crc`). Where Hadoop has no native library, Spark's own starts ten
 * processes for each file (`chmod`, `readlink`).
 */
public final class LocalCheckpointFiles extends FileContextBasedCheckpointFileManager {
    public LocalCheckpointFiles(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean mayReplace) {
        if (!isLocal()) {
            return super.createAtomic(path, mayReplace);
        }
        java.nio.file.Path file = Paths.get(path.toUri().getPath(), new String[0]);
        try {
            java.nio.file.Path unfinished = beside(file, "." + UUID.randomUUID() + ".tmp");
            return new AtomicFile(file, unfinished, new Summed(create(unfinished)), mayReplace);
        } catch (IOException e) {
            Platform.throwException(e); // Scala declares none
            return null;
        }
    }

    private static java.nio.file.Path beside(java.nio.file.Path file, String ending) {
        return file.resolveSibling("." + file.getFileName() + ending);
    }

    private static OutputStream create(java.nio.file.Path file) throws IOException {
        return Files.newOutputStream(file, new OpenOption[0]);
    }

    private static void move(java.nio.file.Path from, java.nio.file.Path to) throws IOException {
        Files.move(from, to, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    private static final class AtomicFile extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final java.nio.file.Path file;
        private final java.nio.file.Path unfinished;
        private final Summed summed;
        private final boolean mayReplace;
        private boolean isOver;

        AtomicFile(java.nio.file.Path file, java.nio.file.Path unfinished, Summed summed, boolean mayReplace) {
            super(new BufferedOutputStream(summed));
            this.file = file;
            this.unfinished = unfinished;
            this.summed = summed;
            this.mayReplace = mayReplace;
        }

        public synchronized void close() throws IOException {
            if (isOver) {
                return;
            }
            isOver = true;
            java.nio.file.Path sums = beside(file, ".crc");
            java.nio.file.Path unfinishedSums = beside(unfinished, ".crc");
            try {
                super.close();
                OutputStream written = create(unfinishedSums);
                try {
                    written.write(summed.sums());
                } finally {
                    written.close();
                }
                if (!mayReplace && Files.exists(file, new LinkOption[0])) {
                    throw new FileAlreadyExistsException(file + ": the file is there already");
                }
                Files.deleteIfExists(sums); // a file without any is read; one with those of another is not
                move(unfinished, file);
                move(unfinishedSums, sums);
            } finally {
                Files.deleteIfExists(unfinished);
                Files.deleteIfExists(unfinishedSums);
            }
        }

        public synchronized void cancel() {
            if (isOver) {
                return;
            }
            isOver = true;
            try {
                try {
                    super.close();
                } finally { // also where the disk is full
                    Files.deleteIfExists(unfinished);
                }
            } catch (IOException e) {
                return; // what is left of it is nobody's
            }
        }
    }

    /** A CRC for each 512 bytes, as Hadoop's file systems with checksums keep them. */
    private static final class Summed extends OutputStream {
        private static final int CHUNK = 512;
        private final OutputStream target;
        private final ByteArrayOutputStream kept = new ByteArrayOutputStream();
        private final DataOutputStream sums = new DataOutputStream(kept);
        private final CRC32 crc = new CRC32();
        private int filled;

        Summed(OutputStream target) throws IOException {
            this.target = target;
            sums.write(new byte[] {'c', 'r', 'c', 0});
            sums.writeInt(CHUNK);
        }

        public void write(int value) throws IOException {
            write(new byte[] {(byte) value}, 0, 1);
        }

        public void write(byte[] bytes, int start, int length) throws IOException {
            target.write(bytes, start, length);
            for (int left = length; left > 0; ) {
                int count = Math.min(left, CHUNK - filled);
                crc.update(bytes, start + length - left, count);
                left -= count;
                filled += count;
                if (filled == CHUNK) {
                    end();
                }
            }
        }

        public void flush() throws IOException {
            target.flush();
        }

        public void close() throws IOException {
            target.close();
            if (filled > 0) {
                end();
            }
        }

        byte[] sums() {
            return kept.toByteArray();
        }

        private void end() throws IOException {
            sums.writeInt((int) crc.getValue());
            crc.reset();
            filled = 0;
        }
    }
}
