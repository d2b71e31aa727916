#pragma once
// The kinds of `choir bench`; each parses its own arguments and returns the exit code. Also their
// shared helpers: words of the command line, decks, devices, and the end of a bench.
#include <fmt/core.h>

#include <functional>
#include <memory>
#include <optional>
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

/// The ranks, nodes and card of a job, as the command line names them.
struct JobPlace {
  std::optional<int> ranks, nodes, ranks_per_node;
  std::string target;  ///< a card or another key of find_target(); "": this machine
  std::string gpus;    ///< as written: a number of GPUs per node, or a card
};
/// Adds --ranks, --nodes, --gpus-per-node or --ranks-per-node, --gpus and --target. `purpose` is
/// the beginning of their help, "" or "with --check: ".
void add_place_options(CommandLine& app, JobPlace& place, const std::string& purpose = {});
/// Takes --gpus as a number or a card, and --nodes beside --ranks as ranks per node. Throws
/// DeckError if they contradict each other.
void settle_place(JobPlace& place);
/// Settles the place and turns --nodes into ranks, by the usual number of GPUs on a node if none is
/// given. Throws DeckError also if nothing says how many ranks a node has.
void settle_ranks(JobPlace& place);

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
