#pragma once
// The kinds of `choir bench`; each parses its own arguments and returns the exit code. Also their
// shared helpers: words of the command line, decks, devices, and the end of a bench.
#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/app/command_line.hpp"
#include "src/core/output.hpp"
#include "src/lab/bench/bench_report.hpp"
#include "src/lab/bench/bench_results.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

int bench_step_command(const Invocation& call);
int bench_collectives_command(const Invocation& call);
int bench_reader_command(const Invocation& call);
int bench_checkpoint_command(const Invocation& call);
int bench_ops_command(const Invocation& call);
int bench_gemm_command(const Invocation& call);
int bench_attention_command(const Invocation& call);
int bench_scaling_command(const Invocation& call);

const std::vector<Command>& bench_kinds();

/// Adds --json, and for benches with rows, which can be written as CSV and compared, also --csv,
/// --baseline and --tolerance.
void add_file_options(CommandLine& app, BenchFiles& files, bool rows = true);

/// The words of a command line that are not options: [DECK.json] key.path=value ...
struct BenchWords {
  std::string deck;     ///< "" if none is given
  Arguments overrides;  ///< without `device`
  std::string device;   ///< the value of device=...; "" if not given
};
/// Throws DeckError if there are two decks.
BenchWords sort_words(const Arguments& words);

/// Opens the device of a bench whose ranks do not communicate, as choose_device() does, but ranks
/// may share a GPU. Throws DeckError for an unknown name and for a device that cannot be used.
/// Collective over the world.
std::unique_ptr<Device> bench_device(const std::string& wanted, Mesh& mesh);

/// Prints the sentence of replace_missing_text() to standard error, on rank 0.
void tell_replacement(const std::string& sentence, int rank);

struct BenchDeck {
  std::string text;  ///< the text that was read
  Deck deck;
  Workplace place;
};

/// Opens the deck of a bench, with random tokens in place of a text of the shipped decks that is
/// missing. `also` is a further check on every rank before anything is opened; it
/// may throw. Throws DeckError, StorageError, CommError, the same on every rank. Collective over
/// the world.
BenchDeck open_bench_deck(MpiSession& session, const FamilyTable& families, const BenchWords& words,
                          const std::function<void()>& also);

/// Prints and writes a report on rank 0. Returns the exit code of this rank.
template <class Report>
int finish_bench(const MpiSession& session, const BenchFiles& files, const Report& report) {
  if (session.rank() != 0) return report.valid() ? 0 : static_cast<int>(ExitCode::other);
  if (files.table()) print_safely("{}", to_string(report));
  return files.finish(to_csv(report), to_json(report), report.valid());
}

}  // namespace choir
