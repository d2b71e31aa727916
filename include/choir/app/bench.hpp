#pragma once
// The kinds of `choir bench`; each parses its own arguments and returns the exit code. And what
// they share: where results go, and on which device they are measured.
#include <memory>
#include <string>
#include <vector>

#include "choir/app/command_line.hpp"
#include "choir/app/commands.hpp"
#include "choir/comm/mesh.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir {

int bench_step_command(const Arguments& arguments);
int bench_collectives_command(const Arguments& arguments);
int bench_reader_command(const Arguments& arguments);
int bench_checkpoint_command(const Arguments& arguments);
int bench_ops_command(const Arguments& arguments);
int bench_gemm_command(const Arguments& arguments);
int bench_attention_command(const Arguments& arguments);
int bench_scaling_command(const Arguments& arguments);

const std::vector<Command>& bench_kinds();

/// Files beside the table, by --csv and --json. "-" is standard output, in place of the table.
struct BenchFiles {
  std::string csv, json;
  std::string baseline;    ///< a file that --json wrote earlier
  double tolerance = 0.1;  ///< a row may take so much more of its time of then

  /// `rows`: a bench with rows, which can be written as CSV and compared; else --json only.
  void add_to(CommandLine& app, bool rows = true);
  bool table() const { return csv != "-" && json != "-"; }
  /// While nothing has been measured yet: throws StorageError when results cannot be written,
  /// DeckError when the baseline cannot be read.
  void require_writable() const;
  /// Throws StorageError.
  void write(const std::string& csv_text, const std::string& json_text) const;
  /// For rank 0. Writes; compares with the baseline, and prints what comes of it (where the table
  /// would be, else to standard error). The exit code of the bench. Throws StorageError, DeckError.
  int finish(const std::string& csv_text, const std::string& json_text, bool valid) const;
};

/// [DECK.json] key.path=value ...: the words of a command line that are no options.
struct BenchWords {
  std::string deck;     ///< "" when none is named
  Arguments overrides;  ///< without `device`
  std::string device;   ///< of device=...; "" when not given
};
/// Throws DeckError for a second deck.
BenchWords sort_words(const Arguments& words);

/// For benches whose ranks do not talk: as choose_device(), and ranks may share a GPU. Collective
/// over the world. Throws DeckError for an unknown name and where the device cannot be used.
std::unique_ptr<Device> bench_device(const std::string& wanted, Mesh& mesh);

/// Collective over the world. At rank 0 a JSON object: build, deck ("" none), hosts, processors
/// and their clocks, GPUs, libraries, batch job, and what of the environment can change a result.
/// Elsewhere "".
std::string bench_provenance(Mesh& mesh, const Device& device, const std::string& deck_text,
                             const Arguments& overrides);

/// Rows of one bench as they are printed and stored.
struct BenchReport {
  std::string bench;                  ///< "ops"
  std::string device;                 ///< description
  std::vector<std::string> ceilings;  ///< "copy 3.9 TB/s", what rows are held against
  std::vector<ops::BenchRow> rows;
  std::vector<std::string> remarks;
  std::string provenance;  ///< a JSON object; "": that of the build

  bool valid() const;
};
std::string to_string(const BenchReport& report);
std::string to_json(const BenchReport& report);  ///< one object, with provenance
std::string to_csv(const BenchReport& report);  ///< header and rows, provenance in the last columns

}  // namespace choir
