// choir train DECK.json [key.path=value ...]
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stop_request.hpp"
#include "src/train/loop/train.hpp"

namespace choir {
namespace {

/// Writes the end of a failed run to its log, because stderr is often not kept. Errors of writing
/// (a full disk) are ignored.
void write_end(const std::string& folder, const std::exception& error) {
  std::error_code unknown;
  if (!std::filesystem::exists(folder + "/log.txt", unknown))
    return;  // the run was refused before it began
  try {
    Logger log(false);
    log.to_file(folder + "/log.txt");
    log.error("ended with exit code {}: {}", static_cast<int>(failure_of(error).code),
              error.what());
  } catch (const Error&) {
  }
}

int train(MpiSession& session, const FamilyTable& families, const std::string& path,
          const Arguments& overrides) {
  const double started = now_seconds();
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong,
                    "start with the mpiexec of the MPI this program was linked with; `choir "
                    "doctor` shows which");
  Deck deck;
  Layout layout;
  Workplace place;
  {
    const auto started_ranks = make_mpi_communicator(MPI_COMM_WORLD, "started");
    const std::string text = read_everywhere(*started_ranks, path);
    together(*started_ranks, [&] {
      deck = parse_deck(families, text, path, overrides);
      layout = layout_of(deck, session.size());
    });
    place.mesh = Mesh::over(*started_ranks, layout, mesh_options_of(deck));
  }
  choose_threads(place.mesh->node());
  open_device(place, deck);
  const char* const all_ranks = std::getenv("LOG_FROM_ALL_RANKS");  // the same variable as in ezpz
  Logger log(session.rank() == 0 || deck.log.all_ranks ||
             (all_ranks != nullptr && std::string_view(all_ranks) == "1"));
  log.to_stdout();
  const std::string folder = deck.run.dir;
  try {
    return static_cast<int>(choir::train(std::move(deck), place, log, started));
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    const bool everywhere = own != nullptr && own->agreed_ranks() == session.size();
    if (!everywhere || session.rank() == 0) write_end(folder, error);
    throw;
  }
}

/// Prints what a job must know before it starts the ranks: the run directory and the time limit;
/// also checks that everything that a start opens exists. If several processes were started, only
/// the first checks.
int check_deck(MpiSession& session, const FamilyTable& families, const std::string& path,
               const Arguments& overrides) {
  if (session.rank() != 0) return static_cast<int>(ExitCode::done);
  const Deck deck = read_deck(families, path, overrides);
  print_safely("run.dir={}\nrun.seed={}\nrun.walltime={:.0f}\nrun.walltime_margin={:.0f}\n",
               printable_name(deck.run.dir), deck.run.seed, deck.run.walltime,
               deck.run.walltime_margin);
  Logger log;
  log.to_stdout();
  const auto alone = Mesh::planned(Layout(), 0, 1);
  check_start(deck, *alone, log);
  print_safely("deck OK\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int train_command(const Invocation& call) {
  CommandLine app("Trains a model from a deck, or continues the run in its run directory.",
                  "choir train");
  std::string deck;
  Arguments overrides;
  bool describe = false, schema = false, only_check = false;
  app.add_option("deck", deck, "deck, a JSON file (see inputs/)");
  app.add_option("overrides", overrides, "any number of key.path=value");
  app.add_flag("--describe", describe, "print every key with type, default, unit and constraints");
  app.add_flag("--schema", schema, "print a JSON schema of decks, for editors");
  app.add_flag(
      "--check", only_check,
      "print the run directory, open everything that the run would open (data, tokenizer, "
      "checkpoint, run.dir) without starting it; prints \"deck OK\" at the end, or the problem");
  if (const auto code = parse(app, call)) return *code;
  if (describe || schema) {
    print_safely("{}\n", describe ? describe_deck(call.families) : deck_schema(call.families));
    return 0;
  }
  if (deck.empty())
    return without_mpi([]() -> int {
      throw DeckError("no deck given", "choir train inputs/gpt_quickstart.json");
    });
  if (only_check)
    return with_mpi(
        [&](MpiSession& session) { return check_deck(session, call.families, deck, overrides); });
  hold_stop_requests();
  return with_mpi(
      [&](MpiSession& session) { return train(session, call.families, deck, overrides); });
}

}  // namespace choir
