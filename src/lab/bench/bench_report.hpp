#pragma once
// The reports of the benches, and the bench of saves: the state of a deck's real engine is saved
// and read back. Each report knows if it is valid, and can be written as a table by to_string(), as
// CSV with a header, and as one JSON object with rows and provenance. The reports are pure, except
// that a BenchReport adds the number of threads, and the build if it has no provenance.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "kernels/bench/bench_table.hpp"
#include "src/data/text/bench_readers.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "src/store/bench_checkpoint.hpp"

namespace choir {

struct SaveBenchOptions {
  std::string folder = ".";
  int rounds = 5;
  std::int64_t transfer_bytes = 1 << 20;
  double step_seconds = 0;  ///< duration of a training step; 0: it is measured
};

struct SaveBench {
  CheckpointBench access;
  double step_seconds = 0;  ///< 0: unknown
};

/// Measures the saves of the deck's engine. Collective over the mesh. Throws DeckError, DataError,
/// StorageError.
SaveBench bench_save(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const SaveBenchOptions& options);

/// Measures saves of a state of `bytes` in total, of which every rank has an equal share.
SaveBench bench_save(std::int64_t bytes, Mesh& mesh, Device& device,
                     const SaveBenchOptions& options);

/// The report of operations, matrix products or attention.
struct BenchReport {
  std::string bench;                  ///< "ops"
  std::string device;                 ///< description
  std::vector<std::string> ceilings;  ///< the rates that rows are compared with: "copy 3.9 TB/s"
  std::vector<ops::BenchRow> rows;
  std::vector<std::string> remarks;
  std::string noise{};     ///< noise_text(): why the times mean little; "": nothing disturbed them
  std::string provenance;  ///< a JSON object; "": the provenance of the build

  bool valid() const;
};
std::string to_string(const BenchReport& report);
/// "; NOISY: REASONS: ..." behind a verdict, "" for quiet measurements. A row is VALID if its
/// results are right, whatever disturbed its time.
std::string noisy(const std::string& noise);
std::string to_csv(const BenchReport& report);
std::string to_json(const BenchReport& report);

struct CollectivesReport {
  std::string device, note, provenance;
  int ranks = 1;
  std::vector<CollectiveRow> rows;
  /// Measured only in host memory, with several ranks on a node.
  std::optional<AllReduceComparison> comparison;
  std::string noise{};  ///< as in BenchReport

  std::int64_t wrong() const;
  bool valid() const { return wrong() == 0 && !rows.empty(); }
};
std::string to_string(const CollectivesReport& report);
std::string to_csv(const CollectivesReport& report);
std::string to_json(const CollectivesReport& report);

struct ReaderReport {
  std::int64_t bytes = 0;
  int ranks = 1;
  std::string folder, provenance;
  std::vector<ReaderSpeed> rows;

  std::int64_t wrong() const;  ///< number of wrong blocks
  bool valid() const { return wrong() == 0; }
};
std::string to_string(const ReaderReport& report);
std::string to_csv(const ReaderReport& report);
std::string to_json(const ReaderReport& report);

struct CheckpointReport {
  SaveBench run;
  std::string what;    ///< the deck, or "--bytes N"
  std::string layout;  ///< "" without a deck
  std::string device, folder, provenance;

  bool valid() const { return run.access.valid(); }
};

/// A limit that saves must meet. The value is the median over the rounds; both sides of a ratio
/// come from the same round.
struct CheckpointBar {
  std::string name;  ///< "stall of total"
  std::string text;
  double value = 0, low = 0, high = 0, limit = 0;
  bool at_least = false;  ///< true: the value must be at least the limit; false: it must be below
  bool judged = true;     ///< false: there is no reference value to judge against
  bool met() const { return at_least ? value >= limit : value < limit; }
};
std::vector<CheckpointBar> bars_of(const SaveBench& run);

std::string to_string(const CheckpointReport& report);
std::string to_csv(const CheckpointReport& report);
std::string to_json(const CheckpointReport& report);

}  // namespace choir
