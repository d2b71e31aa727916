// choir train DECK.json [key.path=value ...]
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/app/bench.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/hints.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/foreign_names.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/plan/model_sizes.hpp"
#include "src/lab/plan/target.hpp"
#include "src/report/run_list.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stop_request.hpp"
#include "src/train/loop/train.hpp"

namespace choir {
namespace {

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
  log.to_stdout(deck.log.style != LogStyle::compact);
  const std::string run = session.rank() == 0 ? deck.run.dir : "";
  const auto keep_in_index = [&] {
    const std::string fault = run.empty() ? "" : report::add_to_index(run);
    if (!fault.empty()) log.info("the run is not in the index of its folder: {}", fault);
  };
  try {
    const ExitCode code = choir::train(std::move(deck), place, log, started);
    keep_in_index();
    return static_cast<int>(code);
  } catch (...) {
    keep_in_index();
    throw;
  }
}

/// The part of `choir train --describe` about a key, a section, or all keys with this last name; ""
/// if there is none.
std::string describe_keys(const FamilyTable& table, const std::string& word) {
  std::string found;
  bool wanted = false;
  for (const std::string& line : split(describe_deck(table), '\n')) {
    if (line.starts_with("      ")) {  // continues a key
      if (wanted) found += line + "\n";
      continue;
    }
    const std::string key = line.starts_with("  ") ? line.substr(2, line.find(' ', 2) - 2) : "";
    wanted =
        !key.empty() && (key == word || key.starts_with(word + ".") || key.ends_with("." + word));
    if (wanted) found += line + "\n";
  }
  return found.empty() ? "" : found.substr(0, found.size() - 1);
}

/// The refusal of a word that names nothing.
DeckError unknown_key(const FamilyTable& table, const std::string& word) {
  std::vector<std::string> lasts;
  for (const std::string& line : split(describe_deck(table), '\n'))
    if (line.starts_with("  ") && line[2] != ' ') {
      const std::string key = line.substr(2, line.find(' ', 2) - 2);
      lasts.push_back(key.substr(key.rfind('.') + 1));
    }
  const std::string near = nearest_name(word, lasts);
  return DeckError(near.empty() || word.find('.') != std::string::npos
                       ? refusal_of(table, word, "0")
                       : fmt::format("no key is called '{}'; did you mean '{}'?", word, near),
                   "`choir train --describe` lists every key");
}

/// Small letters with blanks in place of '-' and '_'.
std::string as_searched(const std::string& text) {
  std::string searched = fold_name(text);
  std::ranges::replace(searched, '_', ' ');
  return searched;
}

/// The text until the first full stop before a capital: "(Hu et al. 2021)" goes on.
std::string_view first_sentence(std::string_view text) {
  for (std::size_t at = text.find(". "); at != text.npos; at = text.find(". ", at + 1))
    if (at + 2 < text.size() && std::isupper(static_cast<unsigned char>(text[at + 2])) != 0)
      return text.substr(0, at);
  return text;
}

/// The keys whose name or text contains each of the words, those with a matching name first, each
/// with the first sentence of its text; "" if there is none.
std::string search_keys(const FamilyTable& table, const Arguments& words) {
  constexpr std::size_t kMost = 20;  // as many lines as a terminal has
  struct FoundKey {
    std::string path, text;
  };
  std::vector<FoundKey> keys;
  for (const std::string& line : split(describe_deck(table), '\n')) {
    if (line.starts_with("      ")) {
      if (!keys.empty()) keys.back().text += " " + std::string(trim(line));
    } else if (line.starts_with("  ")) {
      keys.push_back({line.substr(2, line.find(' ', 2) - 2), ""});
    }
  }
  const auto lacks = [&](const std::string& text) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return as_searched(text).find(as_searched(word)) == std::string::npos;
    });
  };
  std::erase_if(keys, [&](const FoundKey& key) { return lacks(key.path + key.text); });
  if (keys.empty()) return {};
  std::ranges::stable_partition(keys, [&](const FoundKey& key) { return !lacks(key.path); });
  std::string text = fmt::format("{} with '{}' in the name or text:\n",
                                 counted(std::ssize(keys), "key"), join(words, " "));
  for (std::size_t i = 0; i < std::min(keys.size(), kMost); ++i)
    text += fmt::format("  {:<34} {}\n", keys[i].path, trim(first_sentence(keys[i].text)));
  if (keys.size() > kMost)
    text += fmt::format("  and {} more; a second word narrows the search\n", keys.size() - kMost);
  return text + "`choir train --describe KEY` prints the whole text of a key";
}

/// The text about a word: the keys that it names, else the key that another program calls so, else
/// the keys that contain it; "" if there is none.
std::string text_about(const FamilyTable& table, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (std::string found = describe_keys(table, name); !found.empty()) return found;
  const std::string advice = foreign_advice(table.keys(), name);
  if (advice.empty()) return search_keys(table, {name});
  if (advice.find(' ') != std::string::npos) return {};  // a sentence, for the refusal
  return fmt::format("'{}' of other programs is here:\n{}", name, describe_keys(table, advice));
}

/// Prints the texts about the words, and then throws for those that name nothing. A name in several
/// words, "learning rate", is looked for with underscores first; several words that are not all
/// keys are looked for together.
void print_keys(const FamilyTable& table, const Arguments& words) {
  Arguments names = words;
  if (const std::string joined = join(words, "_");
      words.size() > 1 && describe_deck(table).find("." + joined + " ") != std::string::npos)
    names = {joined};
  const bool all_keys = std::ranges::all_of(
      names, [&](const std::string& word) { return !describe_keys(table, word).empty(); });
  if (names.size() > 1 && !all_keys)
    if (const std::string found = search_keys(table, words); !found.empty()) {
      print_safely("{}\n", found);
      return;
    }
  std::string unknown, hint;
  for (const std::string& word : names) {
    if (const std::string text = text_about(table, word); !text.empty()) {
      print_safely("{}\n", text);
      continue;
    }
    const DeckError error = unknown_key(table, word);
    unknown += (unknown.empty() ? "" : "\n  ") + std::string(error.what());
    hint = error.hint();
  }
  if (!unknown.empty()) throw DeckError(unknown, hint);
}

/// The ranks of a run that is not started here.
struct RequestedRanks {
  JobPlace place;
  bool elsewhere = false;
};

/// Takes the card of --gpus, and its usual number on a node where the command line names none.
/// Throws DeckError for an unknown card, and if the deck does not use it.
void take_card(const std::string& name, const Deck& deck, const JobPlace& place,
               CheckedRanks& ranks) {
  const PlanTarget target = find_target(name, deck, "--gpus");
  if (target.kind != DeviceKind::cuda || deck.device == RequestedDevice::cpu)
    throw DeckError(fmt::format("--gpus {}: this deck computes on the processor", name),
                    "leave out --gpus (in a job file, set GPU_CARD to nothing), or change device");
  if (!target.note.empty())
    throw DeckError(fmt::format("--gpus {}: {}", name, target.note),
                    "`choir plan` with the same --gpus plans the memory of the run");
  ranks.card = {target.name, target.memory, target.multiprocessors, target.compute_major};
  if (!place.ranks || place.ranks_per_node) return;
  ranks.on_node = ranks_per_node_asked(std::nullopt, ranks.all, target);
  ranks.assumed_node = ranks.all >= target.ranks_per_node;
}

/// The ranks of the command line, or those that were started, if several were: one process says
/// nothing about the run.
CheckedRanks ranks_to_check(const MpiSession& session, const RequestedRanks& requested) {
  const auto started = make_mpi_communicator(MPI_COMM_WORLD, "started");
  const std::vector<std::string> hosts = gather_texts(*started, host_name());
  CheckedRanks ranks;
  ranks.elsewhere = requested.elsewhere;
  if (requested.place.ranks) {
    ranks.all = *requested.place.ranks;
    ranks.on_node = std::min(ranks.all, requested.place.ranks_per_node.value_or(ranks.all));
    return ranks;
  }
  if (session.size() == 1) return ranks;
  ranks.all = session.size();
  ranks.on_node = 0;
  for (const std::string& host : hosts) ranks.on_node += host == host_name() ? 1 : 0;
  return ranks;
}

/// The check by one process, for these ranks: of the run directory, the time limit, and everything
/// that a start checks before it trains. Prints what a job must know before it starts them.
int check_alone(const FamilyTable& families, const std::string& path, const Arguments& overrides,
                const RequestedRanks& requested, CheckedRanks ranks) {
  const Deck deck = read_deck(families, path, overrides);
  const std::string& card = requested.place.target;
  if (!card.empty() && fold_name(card) != "here" && fold_name(card) != "cpu")
    take_card(card, deck, requested.place, ranks);
  Logger log;
  log.to_stderr();
  const auto self = make_mpi_communicator(MPI_COMM_SELF, "check");
  const auto alone = Mesh::over(*self, Layout(), mesh_options_of(deck));
  const std::string facts = check_start(deck, ranks, *alone, log);
  print_safely("{}run.dir={}\nrun.walltime={:.0f}\nrun.walltime_margin={:.0f}\n{}deck OK\n",
               printable(facts), printable_name(deck.run.dir), deck.run.walltime,
               deck.run.walltime_margin,
               ranks.assumed_node ? fmt::format("ranks_per_node={}\n", ranks.on_node) : "");
  return static_cast<int>(ExitCode::done);
}

/// If several processes were started, only the first checks, for that number of ranks unless the
/// command line names another one.
int check_deck(MpiSession& session, const FamilyTable& families, const std::string& path,
               const Arguments& overrides, const RequestedRanks& requested) {
  const CheckedRanks ranks = ranks_to_check(session, requested);
  if (session.rank() != 0) return static_cast<int>(ExitCode::done);
  try {
    return check_alone(families, path, overrides, requested, ranks);
  } catch (Error& error) {
    error.set_agreed_ranks(session.size());  // the other ranks check nothing
    throw;
  }
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
  app.add_flag("--describe", describe,
               "print every key with type, default, unit and constraints, or only the keys and "
               "sections that are named");
  app.add_flag("--schema", schema, "print a JSON schema of decks, for editors");
  app.add_flag(
      "--check", only_check,
      "check everything that the run would check before it trains (data, tokenizer, layout, "
      "memory, checkpoint, run.dir), and print the answer, the run directory and the facts; "
      "manifests and texts are prepared as at a start; the last line is \"deck OK\", or there is "
      "an error");
  RequestedRanks requested;
  JobPlace& place = requested.place;
  add_place_options(app, place, "with --check: ");
  app.add_flag("--elsewhere", requested.elsewhere,
               "with --ranks or --nodes: the ranks run on other machines, such as the nodes of a "
               "job that is checked on a login node; their memory is told, but not compared with "
               "that of this machine");
  if (const auto code = parse(app, call)) return *code;
  const bool elsewhere = place.ranks || place.nodes || place.ranks_per_node ||
                         !place.gpus.empty() || !place.target.empty();
  if (elsewhere && !only_check)
    return without_mpi([&]() -> int {
      throw DeckError(
          fmt::format("{} belongs to --check: a run has the ranks that its launcher starts, and "
                      "the cards of their nodes",
                      place.ranks            ? "--ranks"
                      : place.nodes          ? "--nodes"
                      : !place.gpus.empty()  ? "--gpus"
                      : place.ranks_per_node ? "--ranks-per-node"
                                             : "--target"),
          "jobs/launch -n N build/choir train DECK, or add --check");
    });
  const auto settle = [&] {
    settle_ranks(place);
    if ((place.ranks_per_node || requested.elsewhere) && !place.ranks)
      throw DeckError(fmt::format("{} does not say how many ranks the job has",
                                  requested.elsewhere ? "--elsewhere" : "the number of each node"),
                      "add --ranks N or --nodes N");
    return 0;
  };
  if (const int code = without_mpi(settle)) return code;
  if (describe || schema)
    return without_mpi([&] {
      Arguments words = overrides;
      if (!deck.empty()) words.insert(words.begin(), deck);
      if (schema || words.empty())
        print_safely("{}\n", schema ? deck_schema(call.families) : describe_deck(call.families));
      else
        print_keys(call.families, words);
      return 0;
    });
  if (deck.empty())
    return without_mpi([]() -> int {
      throw DeckError("no deck given", program_name() + " train inputs/gpt_quickstart.json");
    });
  if (std::error_code ignored;
      !preset_deck(deck).empty() && !std::filesystem::exists(deck, ignored))
    return without_mpi([&]() -> int {
      throw DeckError(fmt::format("'{}' is a known model, and no deck", deck),
                      fmt::format("`choir plan {0} --out {0}.json` writes a deck", deck));
    });
  if (only_check)
    return with_mpi([&](MpiSession& session) {
      return check_deck(session, call.families, deck, overrides, requested);
    });
  hold_stop_requests();
  return with_mpi(
      [&](MpiSession& session) { return train(session, call.families, deck, overrides); });
}

}  // namespace choir
