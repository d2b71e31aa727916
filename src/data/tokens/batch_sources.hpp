#pragma once
// Where training and validation micro-batches come from (windows of a stream, another rank, or
// Philox), and reading them ahead by a thread of its own while the trainer works on the one before.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "choir/data/tokens/batch.hpp"
#include "choir/data/tokens/dataset.hpp"
#include "src/data/tokens/mpi_group.hpp"

namespace choir {

/// Makes micro-batches of a fixed shape; called by one thread at a time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Fills the batch that is the call-th this rank asks for. May be collective over the ranks.
  virtual void fill(std::int64_t call, Batch& batch) = 0;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t block_size() const = 0;
  /// See TokenReader::abandon.
  virtual void abandon() = 0;
};

/// Batches filled ahead by a BatchSource; see ReadAhead for how far, and for what happens at the
/// end.
class Prefetcher {
 public:
  Prefetcher(std::unique_ptr<BatchSource> source, bool threaded, int slots = 2);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next batch; holds until `slots` - 1 further calls. Throws what the reading threw, again
  /// on every later call.
  const Batch& next();

  std::int64_t calls() const;   ///< of next() so far
  double wait_seconds() const;  ///< spent in next() so far
  std::size_t bytes() const;    ///< of the slots

 private:
  struct State;
  int slots_;
  std::unique_ptr<State> state_;
};

/// What a source needs to know besides where the tokens lie.
struct RowShape {
  std::int64_t rows = 0, block_size = 0, vocab_size = 0;
};

/// Samples of a stream through a reader. Owns a duplicate of `comm`, so that a thread may use it.
class StreamSource : public BatchSource {
 public:
  /// Global sample index to window; padding allowed.
  using WindowOf = std::function<TokenWindow(std::int64_t sample)>;
  /// Collective over `comm`.
  StreamSource(Communicator& comm, const std::string& name, const TokenStream& stream,
               const ReaderOptions& options, const RowShape& shape, WindowOf window_of,
               const MicroBatchOrder& order);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  void abandon() override { reader_->abandon(); }
  const TokenReader& reader() const { return *reader_; }

 private:
  const TokenStream& stream_;
  RowShape shape_;
  WindowOf window_of_;
  MicroBatchOrder order_;
  std::unique_ptr<Communicator> comm_;  // outlives the reader
  std::unique_ptr<TokenReader> reader_;
  std::vector<TokenWindow> windows_;
  std::vector<TokenExtent> extents_;
};

/// Batches that one of several ranks reads for all of them.
class SharedSource : public BatchSource {
 public:
  /// Collective over `peers`. `reading` on rank 0, nullptr on the others.
  SharedSource(Communicator& peers, const std::string& name, std::unique_ptr<BatchSource> reading,
               const RowShape& shape, const MicroBatchOrder& order);
  void fill(std::int64_t call, Batch& batch) override;
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
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
  void abandon() override {}

 private:
  std::uint64_t seed_;
  std::string name_;
  RowShape shape_;
  MicroBatchOrder order_;
  std::int64_t limit_;
};

}  // namespace choir
