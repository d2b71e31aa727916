#pragma once
// Micro-batches read ahead by a thread of its own while the trainer works on the one before.
#include <cstdint>
#include <memory>

#include "choir/data/tokens/batch.hpp"

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

}  // namespace choir
