// choir verify DECK.json [key.path=value ...]
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "choir/core/log.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/verify/verify.hpp"
#include "src/lab/verify/verify_layout.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/collectives.hpp"

namespace choir {
namespace {

struct VerifyRequest {
  const FamilyTable& families;
  std::string deck, layouts = "all", precision = "fp64", json;
  Arguments overrides;
  VerifyOptions options;
};

/// Rank 0 chooses the layouts, which may take a while, and shares them with the others.
LayoutSelection agree_on_layouts(Communicator& world, const Deck& deck, const std::string& wish) {
  LayoutSelection choice;
  together(world, [&] {
    if (world.rank() == 0) choice = choose_layouts(deck, world.size(), wish);
  });
  std::vector<std::string> names;
  for (const VerifyLayout& layout : choice.layouts) names.push_back(layout.to_string());
  std::string text = join(names, ",");
  share_text(world, text);
  choice.layouts = parse_layouts(text);
  return choice;
}

/// A line that names the ranks without work in layouts of fewer ranks than were started; "" if
/// every layout has all of them.
std::string idle_ranks(const std::vector<VerifyLayout>& layouts, int started) {
  const auto ranks = [](const VerifyLayout& one) { return one.ranks(); };
  const auto smaller =
      std::ranges::count_if(layouts, [&](const VerifyLayout& one) { return ranks(one) < started; });
  if (smaller == 0) return "";
  const VerifyLayout& smallest = *std::ranges::min_element(layouts, {}, ranks);
  const int first = ranks(smallest);
  const std::string idle = first + 1 == started
                               ? fmt::format("rank {} has", first)
                               : fmt::format("ranks {} to {} have", first, started - 1);
  return fmt::format("idle       {} nothing to do in {}{}", idle, smallest.to_string(),
                     smaller == 1 ? ""
                                  : fmt::format(", the smallest of {} with fewer ranks than the {} "
                                                "that were started",
                                                counted(smaller, "layout"), started));
}

int verify(MpiSession& session, const VerifyRequest& request) {
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong, "`choir doctor` tells more");
  const auto started = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  Communicator& world = started->world();
  const std::string text = read_everywhere(world, request.deck);
  Deck deck;
  std::vector<std::string> notes;
  VerifyOptions options = request.options;
  std::unique_ptr<LineFile> json;
  together(world, [&] {
    deck = verify_deck(parse_deck(request.families, text, request.deck, request.overrides),
                       precision_named(request.precision), notes);
    if (session.rank() == 0 && !request.json.empty())
      json = std::make_unique<LineFile>(request.json);
  });
  choose_threads(started->node());
  const LayoutSelection choice = agree_on_layouts(world, deck, request.layouts);
  Logger log(session.rank() == 0);
  log.to_stdout();
  Verifier verifier(deck, options, world);
  if (session.rank() == 0)
    print_safely(stderr, "verify: training the reference on one rank, then {}\n",
                 counted(choice.layouts.size(), "layout"));
  verifier.run_reference();
  log.plain(
      verify_header(deck, options, session.size(), choice.about, notes, verifier.tolerances()));
  if (const std::string idle = idle_ranks(choice.layouts, session.size()); !idle.empty())
    log.plain(idle);
  std::size_t width = 0;
  for (const VerifyLayout& layout : choice.layouts)
    width = std::max(width, layout.to_string().size());
  std::vector<VerifyRow> rows;
  ProgressLine progress(log, "verify");
  for (const VerifyLayout& layout : choice.layouts) {
    rows.push_back(verifier.run(layout));
    log.plain(to_string(rows.back(), width));
    log.flush();
    together(world, [&] {
      if (json) json->write(to_json(rows.back()));
    });
    progress.at(std::ssize(rows), std::ssize(choice.layouts));
  }
  log.plain(verdict(rows));
  if (session.size() == 1) {
    log.flush();
    print_safely(stderr, "no layout on several ranks was tested: jobs/launch -n 4 {} verify {}\n",
                 program_name(), as_typed({request.deck}));
  }
  int good = valid(rows) ? 1 : 0;
  world.broadcast(&good, sizeof good, 0);
  return static_cast<int>(good != 0 ? ExitCode::done : ExitCode::numeric);
}

/// Returns the problem with a word after --precision; "" if there is none.
std::string refusal_of_precision(const std::string& name) {
  using enum TrainPrecision;
  const auto precision = value_named<TrainPrecision>(name);
  if (precision == fp64 || precision == fp32 || precision == bf16_mixed) return {};
  const char* alike = "; bf16-mixed divides the work in the same way and can be verified";
  if (precision == bf16_true)
    return std::string(
               "bf16-true differs so much from fp64 on one rank that its rounding could hide a "
               "broken rule") +
           alike;
  if (precision == fp16_mixed)
    return std::string(
               "no tolerance is known for fp16-mixed: its gradients depend on a loss scale, which "
               "fp64 does not have") +
           alike;
  return "'" + name + "' is not one of fp64, fp32, bf16-mixed, the precisions of verify";
}

}  // namespace

int verify_command(const Invocation& call) {
  CommandLine app(
      "Trains a few steps on one rank and in every layout, and compares every loss, "
      "norm,\nparameter, gradient and moment. Tokens or utterances are random;\nno data is read. "
      "Exit code 4 if a layout differs.",
      "choir verify");
  VerifyRequest request{.families = call.families};
  app.add_option("deck", request.deck, "deck, for example inputs/verify_gpt.json").required();
  app.add_option("overrides", request.overrides, "key.path=value, for example model.n_layer=4");
  app.add_option("--layouts", request.layouts,
                 "all: every legal pair of values, at least 150 layouts; quick: every value, at "
                 "least 32 layouts; exhaustive: every legal layout; exhaustive:N: N of them, "
                 "spread evenly; or a list, \"dp=2 tp=2,dp=4 zero=1\", "
                 "of the words " +
                     layout_words())
      .shows_default();
  app.add_option("--steps", request.options.steps, "optimizer steps per run")
      .within(1, 1000)
      .shows_default();
  app.add_option("--precision", request.precision, "fp64 (on the CPU), fp32 or bf16-mixed")
      .checked(refusal_of_precision)
      .shows_default();
  app.add_option("--json", request.json, "also write one JSON object per layout to this file");
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return verify(session, request); });
}

}  // namespace choir
