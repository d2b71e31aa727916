#include "src/lab/plan/plan_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "src/lab/plan/model_sizes.hpp"
#include "test/support/families.hpp"
#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::plan_case;
using test::variants;

constexpr double kGiB = 1024.0 * 1024 * 1024;

void expect_contains(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << words << "\nis not in\n" << text;
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
}

TEST(PlanReport, PrintsThePlanOfEveryRole) {
  const PlanCase request = plan_case(variants(), 16, 4, kGiB, {"parallel.tensor=2"});
  const LayoutPlan plan = plan_layout(request);
  const std::string text = to_string(plan, request.target);
  expect_contains(text,
                  "plan for a test: 192 sequences = 2 sequences x 12 micro-batches x 8 ranks\n");
  expect_contains(text, "layout: dp=8 tp=2 pp=1 cp=1 on 16 ranks, 4 nodes of 4");
  expect_contains(text, "memory plan of every rank:\n" + plan.roles[0].plan.memory.to_string());
  expect_contains(text, "all 16 ranks: ");
  expect_contains(text, "FITS: the fullest rank is 0, ");
  expect_narrow(text);
  PlanCase small = request;
  small.target.memory = 1000;
  const std::string large = to_string(plan_layout(small), small.target);
  expect_contains(large, "TOO LARGE: the fullest rank is 0, ");
  expect_contains(large, " of 1000 B, ");
}

// Roles with different plans are printed one by one; here rank 1 is given another plan.
TEST(PlanReport, NamesRolesThatDiffer) {
  const PlanCase request = plan_case(variants(), 16, 4, kGiB, {"parallel.tensor=4"});
  LayoutPlan plan = plan_layout(request);
  plan.roles[3].plan.memory.add("activations", 1 << 20);
  const std::string text = to_string(plan, request.target);
  expect_contains(text, "memory plan of tensor 0-2 of 4 (12 ranks):");
  expect_contains(text, "memory plan of tensor 3 of 4 (4 ranks):");
  expect_contains(text, "the fullest rank is 3, ");
}

TEST(PlanReport, TableOfLayouts) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 16, 4, kGiB);
  const LayoutSearch search = search_layouts(request, decks);
  const std::string text = to_string(search, request);
  expect_contains(text, "layouts of 16 ranks, 4 a node, that fit into 1.0 GiB a rank");
  expect_contains(text,
                  "   1  dp=16 tp=1 pp=1 cp=1    0    no  none         5.0 MiB  <1 %      12 x 1   "
                  "      192  ");
  expect_contains(text, "      every rank holds everything, only gradients are sent\n");
  expect_contains(text, "  use: train.micro_batch_size=12\n");
  EXPECT_EQ(text.find(" 0 %  "), std::string::npos) << "memory is never 0 %\n" << text;
  expect_narrow(text);
  PlanCase small = request;
  small.target.memory = 1000;
  expect_contains(to_string(search_layouts(small, decks), small), "no layout of 16 ranks fits: ");
  const DeckVariants few = variants({"parallel.context_mode=ulysses"});
  const PlanCase odd = plan_case(few, 5, 5, kGiB);
  EXPECT_EQ(to_string(search_layouts(odd, few), odd), "no layout of 5 ranks is legal\n");
}

TEST(PlanReport, TheAnswerComesFirst) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 16, 4, kGiB, {"parallel.tensor=2"});
  const LayoutPlan plan = plan_layout(request);
  const LayoutSearch search = search_layouts(request, decks);
  const PlanWords words{.command = {"deck.json"}};
  const std::string text = answer(&plan, &search, &search.fitting.front(), request, words);
  EXPECT_EQ(text.rfind("FITS: gpt, ", 0), 0u) << text;
  expect_contains(text, " parameters, on 16 ranks (4 nodes of 4 ranks), a test\n");
  expect_contains(text, "  as written  dp=8 tp=2 pp=1 cp=1, zero 0, 2 x 12 sequences a rank: ");
  expect_contains(text, "  simplest    dp=");
  expect_contains(text, "  type        jobs/launch -n 16 build/choir train deck.json");
  expect_contains(text, "  chosen      the simplest: every rank holds everything");
  expect_contains(text, "; --out writes it\n");
  EXPECT_EQ(text.find("assumed"), std::string::npos) << text;
  expect_narrow(text);
  PlanCase full = request;
  full.target.node_memory = true;
  full.target.memory = 1.1 * plan.needs() * full.ranks_per_node;
  const LayoutPlan close = plan_layout(full);
  expect_contains(answer(&close, nullptr, nullptr, full, words),
                  "  note        training may use all of the memory, and this fills 91 % of it; "
                  "`choir tune` keeps to\n              80 %, ");
  EXPECT_EQ(text.find("choir tune"), std::string::npos) << text;
  PlanCase small = request;
  small.target.memory = 1000;
  const LayoutPlan large = plan_layout(small);
  const LayoutSearch nothing = search_layouts(small, decks);
  const std::string no = answer(&large, &nothing, nullptr, small, words);
  EXPECT_EQ(no.rfind("DOES NOT FIT: ", 0), 0u) << no;
  expect_contains(no, "  closest     dp=");
  EXPECT_EQ(no.find("jobs/launch"), std::string::npos);
}

// "FITS" is never above a layout that does not fit.
TEST(PlanReport, TheAnswerNamesWhatFits) {
  const DeckVariants decks = variants();
  PlanCase request = plan_case(decks, 16, 4, kGiB);
  const LayoutSearch search = search_layouts(request, decks);
  const LayoutChoice* const chosen = &search.fitting.front();
  PlanCase small = request;
  small.target.memory = 1000;
  const LayoutPlan large = plan_layout(small);
  request.target.assumed_node = true;
  request.target.ranks_per_node = 4;
  const std::string other = answer(&large, &search, chosen, request, {.command = {"deck.json"}});
  EXPECT_EQ(other.rfind("FITS IN ANOTHER LAYOUT: gpt, ", 0), 0u) << other;
  EXPECT_LT(other.find("  simplest    "), other.find("  as written  ")) << other;
  expect_contains(other, " %: TOO LARGE\n");
  expect_contains(other, "  assumed     4 GPUs a node, as is usual for this card; --gpus-per-node");
  // A model that is known by its name has no deck yet: the command that writes it comes first.
  PlanWords words{
      .command = {"gpt2"}, .preset = "gpt2", .repeated = "build/choir plan gpt2 --ranks 16"};
  words.asked_node = true;
  const std::string named = answer(&large, &search, chosen, request, words);
  EXPECT_EQ(named.rfind("FITS: gpt, ", 0), 0u) << named;
  expect_contains(named, "\n  plain       dp=16");
  expect_contains(named,
                  "  type        build/choir plan gpt2 --ranks 16 --out gpt2.json\n"
                  "  then        jobs/launch -n 16 build/choir train gpt2.json\n"
                  "  data        random ids");
  EXPECT_EQ(named.find("assumed"), std::string::npos) << named;
  words.out = "my.json";
  expect_contains(answer(&large, &search, chosen, request, words),
                  "  written     my.json (the simplest layout)\n  type        jobs/launch -n 16 "
                  "build/choir train my.json\n");
}

// Numbers of parameters as their makers count them.
TEST(PlanReport, ModelsKnownByName) {
  const std::pair<const char*, const char*> kCounts[] = {
      {"gpt2", "124,439,808"},         {"gpt2-xl", "1,557,611,200"},
      {"llama2-7b", "6,738,415,616"},  {"llama2-70b", "68,976,648,192"},
      {"llama3-8b", "8,030,261,248"},  {"llama3-70b", "70,553,706,496"},
      {"llama3.2-1b", "1,235,814,400"}};
  for (const auto& [name, count] : kCounts) {
    PlanCase request;
    request.deck = parse_deck(test::families(), preset_deck(name), name, {});
    expect_contains(answer(nullptr, nullptr, nullptr, request, {}),
                    fmt::format("gpt, {} parameters", count));
  }
  EXPECT_EQ(preset_deck("llama9"), "");
  for (const std::string& name : preset_names())
    EXPECT_NO_THROW(parse_deck(test::families(), preset_deck(name), name, {})) << name;
}

TEST(PlanReport, Json) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 16, 4, kGiB, {"parallel.tensor=2"});
  const LayoutPlan plan = plan_layout(request);
  const LayoutSearch search = search_layouts(request, decks);
  const auto json = nlohmann::json::parse(plan_json(&plan, &search, request));
  EXPECT_EQ(json["layout"]["data"], 8);
  EXPECT_EQ(json["layout"]["fits"], true);
  EXPECT_EQ(json["layout"]["roles"].size(), 2u);
  std::size_t bytes = 0;
  for (const auto& entry : json["layout"]["roles"][1]["memory"])
    if (entry["place"] == "device") bytes += entry["bytes"].get<std::size_t>();
  EXPECT_EQ(bytes, plan.roles[1].plan.memory.total());
  EXPECT_EQ(json["layout"]["traffic"]["tp"]["bytes"],
            plan.traffic()[static_cast<std::size_t>(Axis::tensor)].bytes);
  EXPECT_EQ(json["choices"].size(), search.fitting.size());
  EXPECT_EQ(json["choices"][0]["reason"], search.fitting[0].reason);
  const auto none = nlohmann::json::parse(plan_json(nullptr, nullptr, request));
  EXPECT_TRUE(none["layout"].is_null());
  EXPECT_FALSE(none.contains("choices"));
}

}  // namespace
}  // namespace choir
