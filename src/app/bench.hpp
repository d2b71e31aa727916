#pragma once
// The kinds of `choir bench`; each parses its own arguments and returns the exit code. And what
// they share: words of the command line, decks, devices, and the end of each.
#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/core/printable.hpp"
#include "choir/lab/bench/bench_report.hpp"
#include "choir/lab/bench/bench_results.hpp"
#include "src/app/session.hpp"

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

/// --json; where the bench has rows, which can be written as CSV and compared, also --csv,
/// --baseline and --tolerance.
void add_file_options(CommandLine& app, BenchFiles& files, bool rows = true);

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

struct BenchDeck {
  std::string text;  ///< as it was read
  Deck deck;
  Workplace place;
};

/// Collective over the world. `also`: what every rank checks beside, before anything is opened; may
/// throw. Throws DeckError, StorageError, CommError, the same on every rank.
BenchDeck open_bench_deck(MpiSession& session, const BenchWords& words,
                          const std::function<void()>& also);

/// What rank 0 prints and writes of a report. The exit code of this rank.
template <class Report>
int finish_bench(const MpiSession& session, const BenchFiles& files, const Report& report) {
  if (session.rank() != 0) return report.valid() ? 0 : static_cast<int>(ExitCode::other);
  if (files.table()) print_safely("{}", to_string(report));
  return files.finish(to_csv(report), to_json(report), report.valid());
}

}  // namespace choir
