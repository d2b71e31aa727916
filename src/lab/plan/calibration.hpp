#pragma once
// The times of products, attention, other operations and calls on a machine, as measured by `choir
// calibrate` or taken from a table of the manufacturers' figures. src/lab/plan/step_time.hpp
// derives the time of a step from them. A calibration is a value; its JSON file carries a checksum,
// so that an edited or truncated file is refused. Pure except for reading files.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/dtype.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/plan/target.hpp"

namespace choir {

/// A product C [m, n] over an inner extent k, with the form of its operands.
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
  double flops_per_second = 0;  ///< counts only the pairs that see each other
};

/// Everything else in forward and backward: seconds = products x factor + bytes x per_byte + flops
/// x per_flop + ops. It is fitted to whole steps of small models, so `product_factor` contains the
/// loss of products to cold caches among other operations.
struct StreamTimes {
  std::string precision;  ///< precision of decks, "fp32"
  double product_factor = 1, per_byte = 0, per_flop = 0;
  double step = 0;       ///< constant time of any step
  double fit_error = 0;  ///< root mean square of (fitted - measured) / measured
};

/// The time of norm and optimizer when they touch this number of bytes.
struct UpdateTime {
  std::string precision;
  double bytes = 0, seconds = 0;
};

struct CallTime {
  bool across = false;  ///< one rank on each of several nodes, all ranks of a node at once; false:
                        ///< ranks of one node
  bool window = false;  ///< in memory of the communicator; false: by messages
  CallKind kind = CallKind::all_reduce;
  int ranks = 2;
  double bytes = 0, seconds = 0;  ///< bytes as CallWork counts them
};

/// The share of a call's time, or of the computation meanwhile if that is shorter, that is hidden
/// if the call is started first and waited for last. Below 0: they slow each other down.
struct Overlap {
  bool across = false;
  double hidden = 0;
};

/// Computation on ranks that share the work along an axis takes `factor` times as long as on each
/// rank alone: every call waits for the slowest rank, and messages use the memory bandwidth of
/// operations.
struct WaitFactor {
  std::string precision;
  Axis axis = Axis::data;
  double factor = 1;  ///< at least 1
};

struct Calibration {
  std::string name;         ///< "2 ranks on host.site", "H200"
  bool assumed = false;     ///< not measured: see assumed_calibration()
  std::string device;       ///< "cpu" or "cuda"
  std::string description;  ///< description of the device, "AVX-512 AMX CPU, 1 thread"
  int ranks = 1, ranks_per_node = 1, threads = 1;
  std::vector<ProductTime> products;
  std::vector<AttentionTime> attention;
  std::vector<StreamTimes> streams;
  std::vector<UpdateTime> updates;
  std::vector<CallTime> calls;
  std::vector<Overlap> overlaps;
  std::vector<WaitFactor> waits;
  std::string noise;              ///< why the measurements mean little; "": they were quiet
  std::string provenance = "{}";  ///< a JSON object: host, processor, date, revision

  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

inline constexpr int kCalibrationVersion = 3;

std::string to_json(const Calibration& calibration);
/// Parses a calibration; `source` names it in messages. Throws DeckError if the text is no
/// calibration, has another version, contains impossible numbers, or does not match its checksum.
Calibration calibration_of_json(std::string_view text, const std::string& source);
/// Reads a calibration file. Local. Throws DeckError also if the file cannot be read.
Calibration read_calibration(const std::string& path);

/// A calibration from the manufacturers' figures for a GPU that has `peak_flops`; every number in
/// it is an assumption. Large products reach 70 % of the peak (those with fewer rows and columns
/// less), attention half of that, streams 80 % of the memory's rate; the links are NVLink in a node
/// and one network card per GPU between nodes. Throws DeckError if the target is not in the table.
Calibration assumed_calibration(const PlanTarget& target);

/// Scales the speed of links between nodes by `speed`: the time that calls between nodes take
/// beyond the smallest call of their kind is divided by it. Throws DeckError unless `speed` is
/// above 0 and there are calls between nodes.
void scale_network(Calibration& calibration, double speed);

/// Throws DeckError if the calibration cannot predict this deck on this target: another kind of
/// device, or a precision or links between ranks that were not measured. `file`: its name, for the
/// hint.
void require_use(const Calibration& calibration, const PlanTarget& target, const Deck& deck,
                 int ranks, int ranks_per_node, const std::string& file = "machine.json");

}  // namespace choir
