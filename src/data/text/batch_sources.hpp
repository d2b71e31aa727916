#pragma once
// Sources of training and validation micro-batches (windows of a stream, another rank, or Philox),
// and reading ahead by a thread while the trainer uses the previous micro-batch.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/data/text/dataset.hpp"
#include "src/data/text/documents.hpp"
#include "src/data/text/mpi_group.hpp"
#include "src/data/text/token_samples.hpp"

namespace choir {

/// Makes micro-batches of a fixed shape; called by one thread at a time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Fills the batch of the call-th request of this rank. May be collective over the ranks.
  virtual void fill(std::int64_t call, Batch& batch) = 0;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t block_size() const = 0;
  /// True if the documents of its rows are separate (Batch::begins and Batch::positions).
  virtual bool documents() const { return false; }
  /// See TokenReader::abandon.
  virtual void abandon() = 0;
};

/// Batches that a BatchSource fills ahead. ReadAhead documents how far ahead it reads and how it
/// ends.
class Prefetcher {
 public:
  Prefetcher(std::unique_ptr<BatchSource> source, bool threaded, int slots = 2);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Returns the next batch, valid until `slots` - 1 further calls. An error of the reading is
  /// thrown here, and again on every later call.
  const Batch& next();

  std::int64_t calls() const;   ///< of next() so far
  double wait_seconds() const;  ///< spent in next() so far
  std::size_t bytes() const;    ///< memory of the slots

 private:
  struct State;
  int slots_;
  std::unique_ptr<State> state_;
};

/// Dimensions of the micro-batches of a source.
struct RowShape {
  std::int64_t rows = 0, block_size = 0, vocab_size = 0;
  bool documents = false;          ///< documents are separate, see documents.hpp
  std::int32_t document_end = -1;  ///< the token that ends them; below 0: none
};

/// Samples of a stream, read by a TokenReader. Owns a duplicate of `comm`, so a thread may use it.
class StreamSource : public BatchSource {
 public:
  /// Maps a global sample index to its window, which may be padding.
  using WindowOf = std::function<TokenWindow(std::int64_t sample)>;
  /// Collective over `comm`.
  StreamSource(Communicator& comm, const std::string& name, const TokenStream& stream,
               const ReaderOptions& options, const RowShape& shape, WindowOf window_of,
               const MicroBatchOrder& order);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  bool documents() const override { return shape_.documents; }
  void abandon() override { reader_->abandon(); }
  const TokenReader& reader() const { return *reader_; }

 private:
  const TokenStream& stream_;
  RowShape shape_;
  DocumentEnds document_ends_;
  std::vector<std::uint8_t> ends_;  // of one row
  WindowOf window_of_;
  MicroBatchOrder order_;
  std::unique_ptr<Communicator> comm_;  // outlives the reader
  std::unique_ptr<TokenReader> reader_;
  std::vector<TokenWindow> windows_;
  std::vector<TokenExtent> extents_;
};

/// The tokens of a stream in device memory as i32, 4 bytes each, and after them two rows of
/// padding: zeros for inputs, and kIgnoredTarget for targets.
class ResidentTokens {
 public:
  static std::size_t bytes_of(const TokenStream& stream, std::int64_t block_size) {
    return static_cast<std::size_t>(stream.count() + 2 * block_size) * sizeof(std::int32_t);
  }
  /// Collective over `comm`: every rank reads the whole stream. Throws DataError for an id outside
  /// the vocabulary.
  ResidentTokens(Communicator& comm, const TokenStream& stream, const ReaderOptions& options,
                 const RowShape& shape, Device& device);

  const std::byte* at(std::int64_t token) const {
    return static_cast<const std::byte*>(memory_.data()) +
           static_cast<std::size_t>(token) * sizeof(std::int32_t);
  }
  const std::byte* input_padding() const { return at(tokens_); }
  const std::byte* target_padding() const { return at(tokens_ + block_size_); }

 private:
  std::int64_t tokens_, block_size_;
  Buffer memory_;
};

/// Samples of a stream that the device holds: the batch has the addresses of its rows, and the
/// host reads no token. Local.
class ResidentSource : public BatchSource {
 public:
  ResidentSource(const ResidentTokens& tokens, const RowShape& shape,
                 StreamSource::WindowOf window_of, const MicroBatchOrder& order);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  void abandon() override {}

 private:
  const ResidentTokens& tokens_;
  RowShape shape_;
  StreamSource::WindowOf window_of_;
  MicroBatchOrder order_;
};

/// Batches that one rank reads for several ranks.
class SharedSource : public BatchSource {
 public:
  /// Collective over `peers`. `reading` is set on rank 0 and nullptr on the others.
  SharedSource(Communicator& peers, const std::string& name, std::unique_ptr<BatchSource> reading,
               const RowShape& shape, const MicroBatchOrder& order);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  bool documents() const override { return shape_.documents; }
  void abandon() override;

 private:
  RowShape shape_;
  MicroBatchOrder order_;
  std::unique_ptr<Communicator> comm_;  // outlives the group
  MpiGroup group_;
  std::unique_ptr<BatchSource> reading_;
};

/// Random tokens. Samples from `limit` on are padding; 0: no limit.
class SyntheticSource : public BatchSource {
 public:
  SyntheticSource(std::uint64_t seed, std::string name, const RowShape& shape,
                  const MicroBatchOrder& order, std::int64_t limit);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  bool documents() const override { return shape_.documents; }
  void abandon() override {}

 private:
  std::uint64_t seed_;
  std::string name_;
  RowShape shape_;
  MicroBatchOrder order_;
  std::int64_t limit_;
};

}  // namespace choir
