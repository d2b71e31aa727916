#pragma once
// What a step does, written down while it runs on the null device: products and attention by their
// shapes, calls of communicators by kind and size, everything else as FLOPs and bytes, all by the
// part of the step that it belongs to. The time of a step is predicted from it (StepTime). The
// journal of a null device is in its PlanCache; other devices have none. Local.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// C [m, n] over an inner extent k, `batch` times.
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
  double flops = 0;  ///< as counted: of the pairs that see each other
  auto operator<=>(const AttentionWork&) const = default;
};

enum class CallKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, message };

/// The ranks of a communicator: of one axis, or some of them.
struct CallGroup {
  std::string axis;  ///< "tp"
  int ranks = 1;
  int nodes = 1;  ///< that they are on, equally many on each
  bool operator==(const CallGroup&) const = default;
};

/// A call of all ranks of a group; of several messages that are posted together the longer way.
struct CallWork {
  int group = 0;  ///< index into WorkRecord::groups
  CallKind kind = CallKind::all_reduce;
  bool started = false;   ///< and waited for later: what is computed between may hide it
  bool window = false;    ///< in memory that the communicator allocated
  std::size_t bytes = 0;  ///< of the whole buffer, as CommTraffic counts them
  auto operator<=>(const CallWork&) const = default;
};

enum class WorkPart : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  exchange,   ///< between those: messages of the pipeline
  gradients,  ///< what is left to reduce when the last of them is done
  update,     ///< norm and optimizer
  gather,     ///< of updated parameters
};

/// `last`: of the last micro-batch, with which gradients are complete.
struct WorkPlace {
  WorkPart part = WorkPart::forward;
  int chunk = 0;
  bool last = false;
  auto operator<=>(const WorkPlace&) const = default;
};

/// The work of all visits to a place.
struct PlaceWork {
  std::int64_t visits = 0;
  std::map<ProductWork, std::int64_t> products;  ///< how often
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
  /// From now on, with an empty record. `counter` is what the ops of the step count into; what it
  /// holds beyond products and attention are the other ops.
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
  WorkCounter before_;  // what had been counted when the place was entered
  WorkCounter named_;   // products and attention since
  WorkPlace place_;
  WorkRecord record_;
};

/// The journal of the stream's device, while it is on; nullptr otherwise.
inline WorkJournal* journal_of(const Stream& stream) {
  if (stream.kind() != DeviceKind::null) return nullptr;
  auto& journal = stream.device().plans().get<WorkJournal>();
  return journal.on() ? &journal : nullptr;
}

/// The work from here on belongs to this place.
inline void enter_place(const Stream& stream, const WorkPlace& place) {
  if (WorkJournal* journal = journal_of(stream)) journal->enter(place);
}

}  // namespace choir
