#pragma once
// Batches of training without a prepared copy. Threads of each rank encode units ahead. The ranks
// divide the units in the order of the epochs, and the owner of a unit sends its tokens to all when
// a step needs them; so every unit is encoded once in an epoch by all ranks together, and every
// layout gets the same tokens in the same order. A run that continues encodes the unit in which it
// stopped again, and no other.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/data/text/batch_sources.hpp"
#include "src/data/text/text_index.hpp"
#include "src/data/text/unit_order.hpp"

namespace choir {

/// The texts of training on the fly, shared by everything that reads them.
struct StreamedText {
  TextSource source;
  Vocabulary vocabulary;
  TextIndex index;
};

/// Encodes the units of one rank ahead, in the order of the epochs. Places are those of UnitOrder.
class UnitsAhead {
 public:
  /// The units at places first, first + stride, ... `threads` of them are encoded at once, and as
  /// many are kept beyond those that tokens() was asked for.
  UnitsAhead(const StreamedText& text, const UnitOrder& order, std::int64_t first,
             std::int64_t stride, int threads);
  ~UnitsAhead();
  UnitsAhead(const UnitsAhead&) = delete;
  UnitsAhead& operator=(const UnitsAhead&) = delete;

  /// Waits for the ids at `place`; places below `least` are forgotten. Throws the error of the
  /// encoding; DataError if the ids are not those of the index; CommError once stopped.
  const std::vector<std::int32_t>& tokens(std::int64_t place, std::int64_t least);
  void stop();
  std::int64_t encoded() const;  ///< units that were begun

 private:
  struct Slot {
    std::int64_t place = 0;
    bool taken = false, ready = false;
    std::vector<std::int32_t> ids;
    std::exception_ptr failure;
  };
  void work();
  void encode(Slot& slot) const;
  void extend(std::int64_t place);

  const StreamedText& text_;
  const UnitOrder& order_;
  std::int64_t next_, stride_;
  int threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Slot>> slots_;  // this and the members below are under the mutex
  std::atomic<bool> stop_ = false;
  std::int64_t begun_ = 0;
  std::vector<std::thread> running_;
};

class StreamedSource : public BatchSource {
 public:
  /// Collective over `comm`. The order of micro-batches must be that of all its ranks.
  StreamedSource(Communicator& comm, const std::string& name,
                 std::shared_ptr<const StreamedText> text, const RowShape& shape,
                 std::uint64_t seed, const MicroBatchOrder& order, int threads);
  void fill(std::int64_t call, Batch& batch) override;
  bool documents() const override { return shape_.documents; }
  std::int64_t rows() const override { return shape_.rows; }
  std::int64_t block_size() const override { return shape_.block_size; }
  void abandon() override;
  std::int64_t units_encoded() const { return ahead_->encoded(); }

 private:
  void load_step(std::int64_t step);

  std::shared_ptr<const StreamedText> text_;
  RowShape shape_;
  MicroBatchOrder order_;
  std::unique_ptr<Communicator> comm_;  // outlives the group
  MpiGroup group_;
  UnitOrder units_;
  std::unique_ptr<UnitsAhead> ahead_;
  std::int64_t step_ = -1;  ///< whose tokens are in memory
  std::vector<UnitOrder::Segment> segments_;
  std::vector<std::int32_t> tokens_;  ///< of the segments, one after another
};

/// The number of tokens of each unit.
std::vector<std::int64_t> tokens_of_units(const TextIndex& index);

}  // namespace choir
