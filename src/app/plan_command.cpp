// choir plan DECK.json|MODEL [key.path=value ...] [--ranks N | --nodes N] [--gpus G] [--memory GiB]
// choir plan --fill LOW:HIGH [key.path=value ...] --ranks N | --nodes N ...
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/app/bench.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_document.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/plan/model_sizes.hpp"
#include "src/lab/plan/plan_report.hpp"
#include "src/lab/tune/tune.hpp"
#include "src/models/gpt/token_data.hpp"

namespace choir {
namespace {

struct PlanRequest {
  const FamilyTable& families;
  Arguments typed;  ///< the whole command line
  Arguments words{};
  JobPlace place{};
  std::optional<double> network;
  std::string memory;  ///< of one rank; see memory_of_word()
  bool all = false;    ///< print the whole plan and every layout, not a summary
  std::string calibration;
  std::string fill, like = "llama", out;
  BenchFiles files;
};

PlanTarget target_of(const PlanRequest& request, const Deck& deck) {
  PlanTarget target =
      find_target(request.place.target, deck,
                  request.place.gpus == request.place.target ? "--gpus" : "--target");
  if (request.memory.empty()) return target;
  target.memory = memory_of_word(request.memory);
  target.node_memory = false;
  return target;
}

/// --calibration: a file, or "assumed" for the table of assumptions about the target.
std::shared_ptr<const Calibration> calibration_of(const PlanRequest& request,
                                                  const PlanCase& wanted) {
  if (request.calibration.empty()) return nullptr;
  auto calibration = std::make_shared<Calibration>(request.calibration == "assumed"
                                                       ? assumed_calibration(wanted.target)
                                                       : read_calibration(request.calibration));
  if (request.network) scale_network(*calibration, *request.network);
  require_use(*calibration, wanted.target, wanted.deck, wanted.ranks, wanted.ranks_per_node,
              as_typed({request.calibration}));
  return calibration;
}

/// The ranks of --nodes full nodes, or of --ranks. A number of GPUs per node alone is one node.
int ranks_of(const PlanRequest& request, const Deck& deck, const PlanTarget& target) {
  const bool one_node =
      !request.place.ranks && request.place.ranks_per_node && deck.parallel.data == 0;
  if (!request.place.nodes && !one_node) return ranks_asked(request.place.ranks, deck);
  const std::int64_t ranks = std::int64_t{request.place.nodes.value_or(1)} *
                             request.place.ranks_per_node.value_or(target.ranks_per_node);
  return ranks_asked(static_cast<int>(std::min<std::int64_t>(ranks, 1 << 30)), deck);
}

/// Returns the text of the deck or of a model preset.
std::string deck_text(const std::string& deck) {
  const std::string preset = preset_deck(deck);
  std::error_code ignored;
  if (!preset.empty() && !std::filesystem::exists(deck, ignored)) return preset;
  try {
    return read_deck_with_includes(deck);
  } catch (const DeckError& error) {
    if (std::filesystem::exists(deck, ignored)) throw;
    const std::string near = nearest_name(deck, preset_names());
    throw DeckError(error.what(),
                    near.empty()
                        ? error.hint() + "; models known by name: " + join(preset_names(), ", ")
                        : fmt::format("did you mean '{}'? Models known by name: {}", near,
                                      join(preset_names(), ", ")));
  }
}

/// The words that the answer repeats.
PlanWords words_of(const PlanRequest& request, const std::string& deck) {
  std::error_code ignored;
  const bool preset = !preset_deck(deck).empty() && !std::filesystem::exists(deck, ignored);
  return {.command = request.words,
          .preset = preset ? deck : "",
          .repeated = "build/choir plan " + as_typed(request.typed),
          .out = request.out,
          .asked_node = request.place.ranks_per_node.has_value()};
}

void write_deck(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw StorageError(fmt::format("cannot write '{}'", path), "name another --out");
}

Deck parse_words(const FamilyTable& families, const BenchWords& words) {
  return parse_deck(families, deck_text(words.deck), words.deck, words.overrides);
}

/// Facts that training would take from the data.
struct DataFacts {
  std::int64_t vocabulary = 0;
  std::vector<BatchShape> shapes, evaluation_shapes;  // of evaluation, if they differ
  MemoryPlan scorers;
};

DataFacts facts_of(const PlanRequest& request, Deck deck, MpiSession& session) {
  if (session.size() > 1) {
    DeckError error("choir plan runs on a single process",
                    "start it without mpiexec, and give --ranks N");
    error.set_agreed_ranks(session.size());
    throw error;
  }
  const auto mesh = Mesh::over_world(Layout(), Transport::mpi);
  Logger quiet(false);
  const ModelFamily& family = deck.family();
  deck.parallel.data = 0;  // the shapes do not depend on the number of ranks
  BatchSizes batch{.micro = 1, .accum = 1, .global = 1};
  if (family.fixed_shape())
    deck.train.global_batch_size = 1;
  else
    batch = resolve_batch(deck, 1);
  tell_replacement(replace_missing_text(deck), 0);
  const auto data = family.open_data(deck, batch, *mesh, quiet);
  DataFacts facts{data->vocab_size(), data->shapes(), data->validation_shapes(), {}};
  const NullDevice device(target_of(request, deck).kind);
  data->add_scorers(facts.scorers, &device);
  data->add_resident(facts.scorers, &device);
  return facts;
}

LayoutPlan planned(PlanCase request, const LayoutChoice& choice, const DeckVariants& variants) {
  request.deck = variants.with(choice.changes);
  return plan_layout(request);
}

/// Plans the deck's own layout. Returns nothing, with the reason in `obstacle`, if it does not fit
/// the number of ranks.
std::optional<LayoutPlan> own_plan(const PlanCase& request, bool searching,
                                   std::optional<DeckError>& obstacle) {
  try {
    return plan_layout(request);
  } catch (const DeckError& error) {
    if (!searching) throw;
    obstacle = error;
    return std::nullopt;
  }
}

/// The error of the deck as it is written, above the layouts that are legal.
std::string obstacle_text(const DeckError& error, const PlanCase& request,
                          const LayoutSearch* search) {
  std::string text = fmt::format("as written, the deck does not run on {}: {}\n",
                                 counted(request.ranks, "rank"), error.what());
  if (!error.hint().empty()) text += fmt::format("  {}\n", error.hint());
  if (search != nullptr && !search->fitting.empty())
    text += "  the layouts in the table below are legal on this number of ranks\n";
  return text;
}

/// `obstacle` is the reason why the deck does not run as it is written.
void require_fit(const std::optional<LayoutPlan>& plan, const LayoutSearch* search,
                 const PlanCase& request, const std::optional<DeckError>& obstacle) {
  if (plan && plan->fits()) return;
  const LayoutPlan* closest =
      search && search->closest ? &search->closest->plan : (plan ? &*plan : nullptr);
  if (closest == nullptr && obstacle)
    throw DeckError(fmt::format("no layout of {} is legal for this deck: {}",
                                counted(request.ranks, "rank"), obstacle->what()),
                    obstacle->hint());
  if (closest == nullptr)
    throw DeckError(
        fmt::format("no layout of {} is legal for this deck", counted(request.ranks, "rank")),
        "use another number of ranks, or a global batch that they divide");
  if (closest->needs() <= closest->memory_limit)
    throw DeckError(
        fmt::format("nothing fits: {} needs {} of host memory per rank, and a node has {} for each",
                    closest->layout.to_string(), format_bytes(closest->host_needs()),
                    format_bytes(closest->host_limit)),
        "set checkpoint.async to \"auto\" or false, parallel.offload to \"file\", or use fewer "
        "ranks per node");
  throw DeckError(fmt::format("nothing fits: {} needs {} per rank, and {} has {}",
                              closest->layout.to_string(), format_bytes(closest->needs()),
                              request.target.name, format_bytes(closest->memory_limit)),
                  "use more ranks or more memory per rank, or a smaller train.micro_batch_size, "
                  "model.block_size or model");
}

int run_plan(const PlanRequest& request, const DataFacts& data) {
  const BenchWords words = sort_words(request.words);
  Arguments overrides = words.overrides;
  if (!words.device.empty()) overrides.push_back("device=" + words.device);
  const DeckVariants variants(request.families, deck_text(words.deck), words.deck, overrides,
                              data.vocabulary);
  request.files.require_writable();
  require_regular(request.out);
  PlanCase wanted{.deck = variants.with({})};
  wanted.shapes = data.shapes;
  wanted.evaluation_shapes = data.evaluation_shapes;
  wanted.scorers = data.scorers;
  wanted.target = target_of(request, wanted.deck);
  wanted.ranks = ranks_of(request, wanted.deck, wanted.target);
  wanted.ranks_per_node =
      ranks_per_node_asked(request.place.ranks_per_node, wanted.ranks, wanted.target);
  take_threads_of(wanted);
  for (const auto& [key, axis] : {std::pair("parallel.tensor=", Axis::tensor),
                                  std::pair("parallel.pipeline=", Axis::pipeline),
                                  std::pair("parallel.context=", Axis::context)})
    if (std::ranges::any_of(words.overrides,
                            [&, k = key](const std::string& word) { return word.starts_with(k); }))
      wanted.kept.push_back(axis);
  wanted.calibration = calibration_of(request, wanted);
  const bool searching = wanted.deck.parallel.data == 0;
  const bool speaks = request.files.table();

  std::optional<DeckError> obstacle;
  std::optional<LayoutPlan> plan = own_plan(wanted, searching, obstacle);
  const std::optional<LayoutPlan> written = plan;
  std::optional<LayoutSearch> search;
  const LayoutChoice* chosen = nullptr;
  if (searching) {
    // A calibration that was disturbed says nothing about which layout is faster.
    PlanCase ladder = wanted;
    if (ladder.calibration && !ladder.calibration->noise.empty()) ladder.calibration.reset();
    search = search_layouts(ladder, variants);
    if (plan && plan->fits()) {
      if (!search->fitting.empty()) chosen = &search->fitting.front();
    } else {
      // The table is an estimate: its first entries are planned rank by rank until one fits.
      for (const LayoutChoice& choice : search->fitting) {
        plan = planned(wanted, choice, variants);
        if (!plan->fits()) continue;
        chosen = &choice;
        break;
      }
    }
  }
  const LayoutSearch* found = search ? &*search : nullptr;
  const bool fits = plan && plan->fits();
  if (!request.out.empty() && fits)
    write_deck(request.out, written_deck(deck_text(words.deck),
                                         variants.with(chosen ? chosen->changes : Arguments{})));
  const PlanFindings findings{.written = written ? &*written : nullptr,
                              .plan = plan ? &*plan : nullptr,
                              .search = found,
                              .chosen = chosen,
                              .obstacle = obstacle ? obstacle_text(*obstacle, wanted, found) : ""};
  if (speaks)
    print_safely("{}{}",
                 answer(findings.written, found, chosen, wanted, words_of(request, words.deck)),
                 request.all ? details(findings, wanted) : summary(findings, wanted));
  request.files.write("", plan_json(plan ? &*plan : nullptr, found, wanted));
  std::fflush(stdout);
  require_fit(plan, found, wanted, obstacle);
  // Only the lines above say what would run: a script that starts the deck as it is would fail.
  const bool written_elsewhere = !request.out.empty() || !preset_deck(words.deck).empty();
  return obstacle && !written_elsewhere ? static_cast<int>(ExitCode::deck) : 0;
}

/// Searches a model that fills the ranks, instead of ranks for a model.
int run_fill(const PlanRequest& request) {
  const BenchWords words = sort_words(request.words);
  if (!words.deck.empty())
    throw DeckError(fmt::format("--fill chooses the model, but '{}' is given", words.deck),
                    "leave out the deck, or --fill");
  if (!request.place.ranks && !request.place.nodes)
    throw DeckError("--fill needs the number of ranks or nodes",
                    "--nodes N --gpus H100-80GB, or --ranks N --target h100");
  request.files.require_writable();
  require_regular(request.out);
  SizeRequest wanted{.families = request.families,
                     .like = request.like,
                     .fill = fill_range(request.fill),
                     .overrides = words.overrides,
                     .place = {}};
  const ModelSize smallest = legal_sizes(request.families, wanted.like, words.overrides).front();
  const Deck deck =
      parse_deck(request.families, sized_deck(wanted.like, smallest), "--fill", words.overrides);
  PlanCase& place = wanted.place;
  place.target = target_of(request, deck);
  place.ranks = ranks_of(request, deck, place.target);
  place.ranks_per_node =
      ranks_per_node_asked(request.place.ranks_per_node, place.ranks, place.target);
  take_threads_of(place);
  const SizedModel found = search_size(wanted);
  const std::string file = request.out.empty() ? "filled.json" : request.out;
  const std::string first = request.out.empty()
                                ? fmt::format("  type     build/choir plan {} --out {}\n  then  ",
                                              as_typed(request.typed), file)
                                : "  type  ";
  if (!request.out.empty()) write_deck(request.out, found.deck);
  if (request.files.table())
    print_safely(
        "{}{}   jobs/launch -n {} build/choir train {}\n{}:\n{}", to_string(found, wanted), first,
        place.ranks, file,
        request.out.empty() ? "deck (not written; use --out)" : "written to " + request.out,
        found.deck);
  request.files.write("", plan_json(&found.plan, nullptr, place));
  if (found.share >= wanted.fill.low) return 0;
  throw DeckError(fmt::format("the largest model that fits fills {:.1f} %", 100 * found.share),
                  "give --fill a wider range, or use more sequences per micro-batch "
                  "(train.micro_batch_size=2)");
}

/// True if the plan needs the data: for the vocabulary, or for the lengths of utterances.
bool asks_data(const PlanRequest& request) {
  const BenchWords words = sort_words(request.words);
  if (words.deck.empty())
    throw DeckError("no deck given",
                    program_name() + " plan inputs/bench_d.json --ranks 8 --target h200");
  Deck deck = parse_words(request.families, words);
  const ModelFamily& family = deck.family();
  return !family.fixed_shape() || family.vocab_size(deck) == 0;
}

}  // namespace

int plan_command(const Invocation& call) {
  CommandLine app(
      "Predicts memory, messages and work of any layout on one process: exactly what `train` would "
      "allocate. With parallel.data = \"auto\" it also lists the layouts that fit.",
      "choir plan");
  PlanRequest request{.families = call.families, .typed = call.arguments};
  app.add_option("words", request.words,
                 "deck, or the name of a model (" + join(preset_names(), ", ") +
                     "), and any number of key.path=value");
  add_place_options(app, request.place);
  app.add_option("--memory", request.memory,
                 "memory of one rank in GiB, or with a unit (512MiB, 6442450944B)");
  CommandOption calibration =
      app.add_option("--calibration", request.calibration,
                     "file of choir calibrate, from which step times are predicted and layouts "
                     "sorted by speed; assumed: use the vendor's figures for --target");
  app.add_option("--network", request.network,
                 "factor on the calibrated speed of links between nodes, for example 0.5")
      .needs(calibration);
  const CommandOption fill =
      app.add_option("--fill", request.fill,
                     "LOW:HIGH, instead of a deck: find the largest model that fills this fraction "
                     "of every rank's memory, and print its deck");
  calibration.excludes(fill);
  app.add_option("--like", request.like,
                 "family of models for --fill: " + join(model_likes(), ", "))
      .needs(fill)
      .shows_default();
  app.add_option(
      "--out", request.out,
      "also write the deck to this file, with the changes that make it fit; with --fill, "
      "the deck that was found");
  app.add_flag(
      "--all,--verbose", request.all,
      "print the memory of every kind of rank, the messages of every axis and every layout "
      "with its reason, not only the summary");
  add_file_options(app, request.files, false);
  if (const auto code = parse(app, call)) return *code;
  if (const int code = without_mpi([&] { return settle_place(request.place), 0; })) return code;
  if (fill.given()) return without_mpi([&] { return run_fill(request); });
  bool asks = false;
  const auto look = [&] {
    if (!request.calibration.empty() && request.calibration != "assumed")
      read_calibration(request.calibration);
    return asks = asks_data(request), 0;
  };
  if (const int code = without_mpi(look)) return code;
  if (!asks) return without_mpi([&] { return run_plan(request, {}); });
  return with_mpi([&](MpiSession& session) {
    const BenchWords words = sort_words(request.words);
    return run_plan(request, facts_of(request, parse_words(request.families, words), session));
  });
}

}  // namespace choir
