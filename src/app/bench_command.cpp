// choir bench KIND ...: the table of kinds, the helpers that they share, and `choir bench scaling
// FOLDER`.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mesh/device_choice.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/lab/plan/target.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/report/sweep.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

std::string kinds_table() {
  std::string text;
  for (const Command& kind : bench_kinds())
    text += fmt::format("  {:<12} {}\n", kind.name, kind.summary);
  return text;
}

}  // namespace

const std::vector<Command>& bench_kinds() {
  static const std::vector<Command> table{
      {"step", "time the training step of a deck: phases, tokens/s, ratio to the floor",
       bench_step_command},
      {"collectives", "time every collective along every axis by every backend, checked",
       bench_collectives_command},
      {"reader", "time the token readers against plain pread, checked", bench_reader_command},
      {"checkpoint", "time saves and loads against plain reads and writes, checked",
       bench_checkpoint_command},
      {"ops", "time the bandwidth-bound ops against the copy rate, checked", bench_ops_command},
      {"gemm", "time the matrix products of a deck, and square ones, checked", bench_gemm_command},
      {"attention", "time attention of a deck, or for a series of lengths, checked",
       bench_attention_command},
      {"scaling", "summarise a sweep of bench/scaling.sh, with advice on the batch",
       bench_scaling_command},
  };
  return table;
}

int bench_command(const Invocation& call) {
  const Arguments& arguments = call.arguments;
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    print_safely("usage: choir bench KIND ...      (choir bench KIND --help)\n\n{}", kinds_table());
    return arguments.empty() ? static_cast<int>(ExitCode::deck) : 0;
  }
  for (const Command& kind : bench_kinds())
    if (arguments[0] == kind.name)
      return kind.run({{arguments.begin() + 1, arguments.end()}, call.families});
  return without_mpi([&]() -> int {
    std::vector<std::string> names;
    for (const Command& kind : bench_kinds()) names.emplace_back(kind.name);
    const std::string kinds = "the kinds are " + join(names, ", ");
    if (arguments[0].starts_with("-"))
      throw DeckError(
          fmt::format("no kind of bench is given in front of '{}'", arguments[0]),
          "the kind comes first, as in `choir bench step DECK " + arguments[0] + " ...`; " + kinds);
    const std::string near = nearest_name(arguments[0], names);
    throw DeckError(fmt::format("unknown bench '{}'", arguments[0]),
                    (near.empty() ? "" : "did you mean '" + near + "'? ") + kinds);
  });
}

void add_file_options(CommandLine& app, BenchFiles& files, bool rows) {
  app.add_option("--json", files.json,
                 "also write one JSON object to this file; -: print it instead");
  if (!rows) return;
  app.add_option("--csv", files.csv,
                 "also write header and rows to this file; -: print them instead");
  app.add_option("--baseline", files.baseline,
                 "--json file of an earlier run; exit code 1 if a row has become slower");
  app.add_option("--tolerance", files.tolerance,
                 "largest slowdown of a row, as a fraction of its earlier time")
      .within(0.0, 100.0)
      .shows_default();
}

BenchWords sort_words(const Arguments& words) {
  BenchWords sorted;
  for (const std::string& word : words) {
    if (word.starts_with("device=")) {
      sorted.device = word.substr(word.find('=') + 1);
    } else if (word.find('=') != std::string::npos) {
      sorted.overrides.push_back(word);
    } else if (sorted.deck.empty()) {
      sorted.deck = word;
    } else {
      throw DeckError(fmt::format("two decks are given, '{}' and '{}'", sorted.deck, word),
                      "give one deck, then any number of key.path=value");
    }
  }
  return sorted;
}

void add_place_options(CommandLine& app, JobPlace& place, const std::string& purpose) {
  app.add_option("--ranks", place.ranks,
                 purpose +
                     "ranks of the job; default: those that were started, if several were, "
                     "or those of the deck");
  app.add_option("--nodes", place.nodes,
                 purpose + "full nodes of the job, instead of --ranks, or with them");
  app.add_option("--gpus-per-node,--ranks-per-node", place.ranks_per_node,
                 purpose + "ranks per node, which share its memory");
  app.add_option("--gpus", place.gpus,
                 purpose +
                     "a number: the same as --gpus-per-node; a card, which need not be in "
                     "this machine: the same as --target, also as A100-40GB");
  app.add_option("--target", place.target,
                 purpose + "the device of the job: " + join(target_keys(), ", ") +
                     "; here, the default, is this machine");
}

void settle_place(JobPlace& place) {
  if (!place.gpus.empty()) {
    int number = 0;
    const char* const end = place.gpus.data() + place.gpus.size();
    const auto [stop, error] = std::from_chars(place.gpus.data(), end, number);
    if (error == std::errc() && stop == end)
      place.ranks_per_node = number;
    else
      place.target = place.gpus;
  }
  for (const auto& [option, number] :
       {std::pair("--ranks", place.ranks), std::pair("--nodes", place.nodes),
        std::pair("--gpus-per-node", place.ranks_per_node)})
    if (number && *number < 1)
      throw DeckError(fmt::format("{} {} is below 1", option, *number), "give a positive number");
  if (!place.ranks || !place.nodes) return;
  const int nodes = *place.nodes, each = *place.ranks / nodes;
  if (each * nodes != *place.ranks || place.ranks_per_node.value_or(each) != each)
    throw DeckError(
        fmt::format("--ranks {} are not --nodes {} of {} ranks", *place.ranks, *place.nodes,
                    place.ranks_per_node ? std::to_string(*place.ranks_per_node)
                                         : std::string("equally many")),
        "give --nodes with --gpus-per-node, or --ranks alone");
  place.ranks_per_node = each;
  place.nodes.reset();
}

void settle_ranks(JobPlace& place) {
  settle_place(place);
  if (!place.nodes) return;
  const std::string key = fold_name(place.target);
  const bool card = !key.empty() && key != "here" && key != "cpu";
  if (!place.ranks_per_node && !card)
    throw DeckError(fmt::format("--nodes {} does not say how many ranks a node has", *place.nodes),
                    "add --gpus-per-node N, or --gpus with the name of a card");
  const int each =
      place.ranks_per_node ? *place.ranks_per_node : find_target(key, Deck()).ranks_per_node;
  place.ranks_per_node = each;
  place.ranks =
      static_cast<int>(std::min<std::int64_t>(std::int64_t{*place.nodes} * each, 1 << 30));
  place.nodes.reset();
}

std::unique_ptr<Device> bench_device(const std::string& wanted, Mesh& mesh) {
  const auto requested = value_named<RequestedDevice>(wanted);
  together(mesh.world(), [&] {
    if (!requested)
      throw DeckError(fmt::format("unknown device '{}'", wanted), "legal: auto, cpu or cuda");
  });
  const DeviceChoice choice = choose_device(mesh, {.device = *requested, .share = true});
  std::unique_ptr<Device> device;
  together(mesh.world(), [&] { device = make_device(choice.kind, choice.ordinal); });
  return device;
}

void tell_replacement(const std::string& sentence, int rank) {
  if (rank == 0 && !sentence.empty()) print_safely(stderr, "choir: {}\n", sentence);
}

BenchDeck open_bench_deck(MpiSession& session, const FamilyTable& families, const BenchWords& words,
                          const std::function<void()>& also) {
  BenchDeck opened;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    opened.text = read_everywhere(world->world(), words.deck);
    together(world->world(), [&] {
      Arguments overrides = words.overrides;
      if (!words.device.empty()) overrides.push_back("device=" + words.device);
      opened.deck = parse_deck(families, opened.text, words.deck, overrides);
      tell_replacement(replace_missing_text(opened.deck), session.rank());
      also();
    });
  }
  Workplace& place = opened.place;
  place.mesh =
      Mesh::over_world(layout_of(opened.deck, session.size()), mesh_options_of(opened.deck));
  choose_threads(place.mesh->node());
  open_device(place, opened.deck);
  return opened;
}

namespace {

struct BenchScalingRequest {
  std::string folder, csv, jsonl, run;
  double loss = 0;
};

int report_scaling(const BenchScalingRequest& request) {
  if (request.run.empty() != (request.loss == 0))
    throw DeckError("--run and --target-loss must be given together",
                    "--run RUN_DIRECTORY --target-loss 2.0");
  std::optional<Target> target;
  if (!request.run.empty()) target = target_of_run(request.run, request.loss);
  const BenchFiles files{.csv = request.csv, .json = request.jsonl};
  files.require_writable();
  const Sweep sweep = read_sweep(request.folder);
  if (files.table()) print_safely("{}\n", to_table(sweep));
  if (files.table() && sweep.valid()) print_safely("{}\n", advice(sweep, target));
  const int code = files.finish(to_csv(sweep), to_json_lines(sweep), sweep.valid());
  if (!files.table()) return code;
  const auto valid = std::count_if(sweep.rows.begin(), sweep.rows.end(),
                                   [](const SweepRow& row) { return row.valid(); });
  const auto noisy = std::count_if(sweep.rows.begin(), sweep.rows.end(),
                                   [](const SweepRow& row) { return row.valid() && !row.quiet(); });
  print_safely(
      "{}: {} of {} rows are valid{}\n", sweep.valid() ? "VALID" : "INVALID", valid,
      sweep.rows.size(),
      noisy == 0 ? "" : fmt::format(", but {} of them NOISY, which the advice ignores", noisy));
  return code;
}

}  // namespace

int bench_scaling_command(const Invocation& call) {
  CommandLine app(
      "Summarises a sweep of bench/scaling.sh as a table, CSV or JSON lines, with advice on the "
      "batch.",
      "choir bench scaling");
  BenchScalingRequest request;
  app.add_option("folder", request.folder, "folder with the runs of bench/scaling.sh").required();
  app.add_option("--csv", request.csv,
                 "write header and rows to this file; -: print them instead of the table");
  app.add_option("--jsonl", request.jsonl,
                 "write one JSON line per row, with the times of all steps, to this file; -: print "
                 "them instead of the table");
  app.add_option("--run", request.run,
                 "training run from which time and cost to --target-loss are computed");
  app.add_option("--target-loss", request.loss, "validation loss that this run reached");
  if (const auto code = parse(app, call)) return *code;
  return without_mpi([&] { return report_scaling(request); });
}

}  // namespace choir
