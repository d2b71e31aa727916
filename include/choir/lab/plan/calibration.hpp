#pragma once
// What a machine does, as `choir calibrate` measured it, or as a table of the makers' figures has
// it: times of products, attention, other ops and calls, from which choir/lab/plan/step_time.hpp
// makes the time of a step. A value; a JSON file that carries a checksum, so that what was edited
// or cut off is refused. Pure but for reading files.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/dtype.hpp"
#include "choir/device/work_journal.hpp"
#include "choir/lab/plan/target.hpp"

namespace choir {

/// C [m, n] over an inner extent k, by the form of the operands.
struct ProductTime {
  DType dtype = DType::f32;
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  double seconds = 0;
};

struct AttentionTime {
  DType dtype = DType::f32;
  bool backward = false, causal = true;
  std::int64_t tokens = 0, head_width = 0;
  double flops_per_second = 0;  ///< of the pairs that see each other
};

/// Everything else in forward and backward: seconds = products x factor + bytes x per_byte +
/// flops x per_flop + ops. Fitted to whole steps of small models, so what products lose to cold
/// caches among other ops is in `product_factor`.
struct StreamTimes {
  std::string precision;  ///< of decks, "fp32"
  double product_factor = 1, per_byte = 0, per_flop = 0;
  double step = 0;       ///< of a step, whatever it does
  double fit_error = 0;  ///< root mean square of (fitted - measured) / measured
};

/// Norm and optimizer that touch so many bytes.
struct UpdateTime {
  std::string precision;
  double bytes = 0, seconds = 0;
};

struct CallTime {
  bool across = false;  ///< one rank on each of several nodes, all ranks of a node at once; else
                        ///< ranks of one node
  bool window = false;  ///< in memory of the communicator, else messages
  CallKind kind = CallKind::all_reduce;
  int ranks = 2;
  double bytes = 0, seconds = 0;  ///< as CallWork counts
};

/// What of the time of a call, or of what is computed meanwhile if that is shorter, is not seen
/// where it is started first and waited for last; below 0: they slow each other down.
struct Overlap {
  bool across = false;
  double hidden = 0;
};

/// What ranks that share the work along an axis compute takes so many times as long as on each by
/// itself: at every call the slowest is waited for, and messages want the memory that ops use.
struct WaitFactor {
  std::string precision;
  Axis axis = Axis::data;
  double factor = 1;  ///< 1 at least
};

struct Calibration {
  std::string name;         ///< "2 ranks on host.site", "H200"
  bool assumed = false;     ///< nobody measured it: see assumed_calibration()
  std::string device;       ///< "cpu" or "cuda"
  std::string description;  ///< of the device, "AVX-512 AMX CPU, 1 thread"
  int ranks = 1, ranks_per_node = 1, threads = 1;
  std::vector<ProductTime> products;
  std::vector<AttentionTime> attention;
  std::vector<StreamTimes> streams;
  std::vector<UpdateTime> updates;
  std::vector<CallTime> calls;
  std::vector<Overlap> overlaps;
  std::vector<WaitFactor> waits;
  std::string provenance = "{}";  ///< a JSON object: host, processor, date, revision

  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

inline constexpr int kCalibrationVersion = 3;

std::string to_json(const Calibration& calibration);
/// `source` is for messages. DeckError for what is no calibration, is of another version, has
/// numbers that cannot be, or does not have the checksum that it carries.
Calibration calibration_of_json(std::string_view text, const std::string& source);
/// Local. DeckError also where the file cannot be read.
Calibration read_calibration(const std::string& path);

/// By the makers' figures for a card that has `peak_flops`; every number in it is an assumption.
/// Products reach 70 % of the peak when they are large (fewer rows and columns less), attention
/// half of that, streams 80 % of the memory's rate; links are NVLink in a node and one network card
/// a GPU between nodes. DeckError for a target that is no card of the table.
Calibration assumed_calibration(const PlanTarget& target);

/// As if the links between nodes were `speed` times as fast: what calls between nodes take beyond
/// the time of the smallest of their kind is divided by it. DeckError unless `speed` is above 0,
/// and where there are no calls between nodes.
void scale_network(Calibration& calibration, double speed);

/// DeckError where predictions for this deck on this target cannot be made from it: another kind of
/// device, a precision that was not measured, links between ranks that were not.
void require_use(const Calibration& calibration, const PlanTarget& target, const Deck& deck,
                 int ranks, int ranks_per_node);

}  // namespace choir
