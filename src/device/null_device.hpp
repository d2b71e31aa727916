#pragma once
// Planning on the null device, which allocates addresses without memory and computes nothing: the
// real step, run on it, yields the memory plan and the FLOP and byte counts of any rank of any
// layout. Its journal records the work of that step: products and attention by their shapes, calls
// of communicators by kind and size, everything else as FLOPs and bytes, all by the part of the
// step to which it belongs. StepTime predicts the time of a step from it. The journal of a null
// device is in its PlanCache; other devices have none. Local.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir {

class NullDevice : public Device {
 public:
  /// Plans for a device of kind `plans_for` (the sizes of workspaces depend on it).
  explicit NullDevice(DeviceKind plans_for = DeviceKind::cpu)
      : plans_for_(plans_for), host_visible_(plans_for == DeviceKind::cpu) {}
  /// Plans for a device like `target`.
  explicit NullDevice(const Device& target)
      : plans_for_(target.plans_for()), host_visible_(target.host_visible()) {}
  bool host_visible() const override { return host_visible_; }
  DeviceKind plans_for() const override { return plans_for_; }
  DeviceKind kind() const override { return DeviceKind::null; }
  std::string description() const override { return "null (counts only)"; }
  void* allocate(std::size_t bytes) override;
  void release(void*, std::size_t bytes) noexcept override { live_ -= bytes; }
  void zero(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void copy_from_host(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}

  std::size_t live_bytes() const { return live_; }

 private:
  DeviceKind plans_for_;
  bool host_visible_;
  // Non-canonical on x86-64 and outside every mapping elsewhere: a dereference faults at once.
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
  std::size_t live_ = 0;
};

/// A product C [m, n] with inner extent k, repeated `batch` times.
struct ProductWork {
  DType in = DType::f32;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  auto operator<=>(const ProductWork&) const = default;
};

struct AttentionWork {
  DType dtype = DType::f32;
  bool backward = false, causal = true;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_width = 0;
  double flops = 0;  ///< counted only for pairs of a query and a key that it may see
  auto operator<=>(const AttentionWork&) const = default;
};

enum class CallKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, message };

/// The ranks of a communicator: all ranks of an axis, or some of them.
struct CallGroup {
  std::string axis;  ///< "tp"
  int ranks = 1;
  int nodes = 1;  ///< number of their nodes; each has equally many ranks
  bool operator==(const CallGroup&) const = default;
};

/// A call of all ranks of a group. Of several messages that are posted together it is the longest.
struct CallWork {
  int group = 0;  ///< index into WorkRecord::groups
  CallKind kind = CallKind::all_reduce;
  bool started = false;   ///< the call is waited for later, and computation in between may hide it
  bool window = false;    ///< the buffer was allocated by the communicator
  std::size_t bytes = 0;  ///< size of the whole buffer, as in CommTraffic
  auto operator<=>(const CallWork&) const = default;
};

enum class WorkPart : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  exchange,   ///< pipeline messages between the parts above
  gradients,  ///< reductions that remain after the last backward
  update,     ///< norm and optimizer
  gather,     ///< gather of updated parameters
};

/// `last` is true in the last micro-batch, which completes the gradients.
struct WorkPlace {
  WorkPart part = WorkPart::forward;
  int chunk = 0;
  bool last = false;
  auto operator<=>(const WorkPlace&) const = default;
};

/// The work of all visits to a place, with counts.
struct PlaceWork {
  std::int64_t visits = 0;
  std::map<ProductWork, std::int64_t> products;  ///< with their number
  std::map<AttentionWork, std::int64_t> attention;
  std::map<CallWork, std::int64_t> calls;
  double other_flops = 0, other_bytes = 0;  ///< of all other ops
  bool operator==(const PlaceWork&) const = default;
};

struct WorkRecord {
  std::vector<CallGroup> groups;
  std::map<WorkPlace, PlaceWork> places;
  bool empty() const { return places.empty(); }
  bool operator==(const WorkRecord&) const = default;
};

class WorkJournal {
 public:
  /// Starts an empty record. `counter` is the counter of the step's ops; the amounts in it beyond
  /// products and attention are those of other ops.
  void start(const WorkCounter& counter);
  WorkRecord stop();
  bool on() const { return counter_ != nullptr; }

  void enter(const WorkPlace& place);
  void product(const ProductWork& work, double flops, double bytes);
  void attention(const AttentionWork& work, double bytes);
  void call(const CallWork& work) { ++here().calls[work]; }
  /// The index of a new group.
  int add_group(const CallGroup& group);

 private:
  PlaceWork& here() { return record_.places[place_]; }
  void settle();

  const WorkCounter* counter_ = nullptr;
  WorkCounter before_;  // the counter when the place was entered
  WorkCounter named_;   // products and attention since then
  WorkPlace place_;
  WorkRecord record_;
};

/// The journal of the stream's device if it is recording, else nullptr.
inline WorkJournal* journal_of(const Stream& stream) {
  if (stream.kind() != DeviceKind::null) return nullptr;
  auto& journal = stream.device().plans().get<WorkJournal>();
  return journal.on() ? &journal : nullptr;
}

/// Assigns the following work to this place.
inline void enter_place(const Stream& stream, const WorkPlace& place) {
  if (WorkJournal* journal = journal_of(stream)) journal->enter(place);
}

}  // namespace choir
