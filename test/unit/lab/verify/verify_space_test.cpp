// Tests of layouts as text and as decks, and of the set of layouts that is run.
#include "src/lab/verify/verify_layout.hpp"
#include "src/models/gpt/family.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "choir/core/error.hpp"
#include "src/lab/verify/verify.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

const char* const kText = R"({
  "model": {"n_layer": 4, "n_head": 8, "n_kv_head": 2, "n_embd": 32, "block_size": 24,
            "vocab_size": 61},
  "data": {"format": "synthetic"},
  "train": {"micro_batch_size": 1, "global_batch_size": 24}
})";

Deck deck(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> notes;
  return verify_deck(parse_deck(test::families(), kText, "deck.json", overrides),
                     TrainPrecision::fp64, notes);
}

/// The legal layouts of the deck above; they take seconds for eight ranks.
const std::vector<VerifyLayout>& legal_on(int ranks) {
  static std::map<int, std::vector<VerifyLayout>> known;
  std::vector<VerifyLayout>& legal = known[ranks];
  if (legal.empty()) legal = legal_layouts(deck(), ranks);
  return legal;
}

using Value = std::pair<int, std::string>;

std::set<Value> values_of(const VerifyLayout& layout) {
  std::set<Value> values;
  for (int a = 0; a < kLayoutAxes; ++a) values.insert({a, layout[static_cast<LayoutAxis>(a)]});
  return values;
}

std::set<Value> values_of(const std::vector<VerifyLayout>& layouts) {
  std::set<Value> all;
  for (const VerifyLayout& layout : layouts) all.merge(values_of(layout));
  return all;
}

/// The pairs of values that occur together in a layout, as numbers: there are hundreds of pairs in
/// tens of thousands of layouts.
std::set<std::size_t> pairs_of(const std::vector<VerifyLayout>& layouts) {
  constexpr std::size_t kMost = 128;  // values of all axes
  static std::map<Value, std::size_t> numbers;
  std::vector<bool> seen(kMost * kMost);
  std::array<std::size_t, kLayoutAxes> values{};
  for (const VerifyLayout& layout : layouts) {
    for (int a = 0; a < kLayoutAxes; ++a)
      values[static_cast<std::size_t>(a)] =
          numbers.try_emplace({a, layout[static_cast<LayoutAxis>(a)]}, numbers.size())
              .first->second;
    for (std::size_t a = 0; a < values.size(); ++a)
      for (std::size_t b = a + 1; b < values.size(); ++b)
        seen[values[a] * kMost + values[b]] = true;
  }
  EXPECT_LE(numbers.size(), kMost);
  std::set<std::size_t> pairs;
  for (std::size_t pair = 0; pair < seen.size(); ++pair)
    if (seen[pair]) pairs.insert(pair);
  return pairs;
}

std::string message_of(const std::string& layouts) {
  try {
    parse_layouts(layouts);
  } catch (const DeckError& error) {
    return std::string(error.what()) + " " + error.hint();
  }
  return "";
}

TEST(VerifyLayout, IsPrintedAndReadBack) {
  VerifyLayout layout;
  EXPECT_EQ(layout.to_string(), "dp=1 tp=1 pp=1 cp=1");
  layout[LayoutAxis::tensor] = "4";
  layout[LayoutAxis::data] = "2";
  layout[LayoutAxis::sequence] = "true";
  layout[LayoutAxis::order] = "dp-tp-cp-pp";
  EXPECT_EQ(layout.to_string(), "dp=2 tp=4 pp=1 cp=1 sequence=true order=dp-tp-cp-pp");
  EXPECT_EQ(layout.ranks(), 8);
  EXPECT_EQ(parse_layouts(layout.to_string()), std::vector{layout});
  const auto two = parse_layouts("  tp=2  sequence=true , dp=3 zero=1 ");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].to_string(), "dp=1 tp=2 pp=1 cp=1 sequence=true");
  EXPECT_EQ(two[1].to_string(), "dp=3 tp=1 pp=1 cp=1 zero=1");
}

TEST(VerifyLayout, WordsNobodyKnowsAreRefusedWithTheLegalOnes) {
  for (const char* wrong : {"dp=2 speed=9", "dq=2", "dp"}) {
    const std::string message = message_of(wrong);
    EXPECT_NE(message.find("legal words: dp=, tp=, pp=, cp=, context_mode=, sequence="),
              std::string::npos)
        << wrong << ": " << message;
  }
  EXPECT_NE(message_of("dp=two").find("'two' is not a number of ranks"), std::string::npos);
  EXPECT_NE(message_of("dp=0").find("'0'"), std::string::npos);
  EXPECT_NE(message_of("dp=2 dp=4").find("given twice"), std::string::npos);
  EXPECT_NE(message_of("dp=2,,tp=2").find("between two commas"), std::string::npos);
  EXPECT_NE(message_of("dp=2 tp=").find("'tp' has no value"), std::string::npos);
  EXPECT_NE(message_of(""), "");
}

TEST(VerifyLayout, SetsEveryAxisOfTheDeck) {
  std::vector<KeyProblem> problems;
  const Deck own =
      deck({"parallel.tensor=2", "parallel.sequence=true", "parallel.order=dp-tp-cp-pp"});
  const Deck plain = lay_out(own, parse_layouts("dp=2 micro=3")[0], problems);
  EXPECT_TRUE(problems.empty()) << problems.front().text;
  EXPECT_EQ(plain.parallel.tensor, 1);
  EXPECT_FALSE(plain.parallel.sequence);
  EXPECT_EQ(plain.parallel.order, "tp-cp-dp-pp");
  EXPECT_EQ(plain.parallel.data, 2);
  EXPECT_EQ(plain.train.micro_batch_size, 3);
  EXPECT_EQ(plain.train.grad_accum, 4);
  EXPECT_EQ(plain.train.global_batch_size, 24);
}

TEST(VerifyLayout, IsAsLegalAsItsDeck) {
  const auto complaint = [](const char* layout) {
    std::vector<KeyProblem> problems;
    lay_out(deck(), parse_layouts(layout)[0], problems);
    return problems.empty() ? std::string() : problems.front().text;
  };
  EXPECT_EQ(complaint("dp=2 tp=4 sequence=true"), "");
  EXPECT_NE(complaint("tp=3").find("model.n_head = 8 cannot be divided"), std::string::npos);
  EXPECT_NE(complaint("sequence=true").find("parallel.sequence = true"), std::string::npos);
  EXPECT_NE(complaint("dp=5").find("train.global_batch_size = 24 is not a multiple"),
            std::string::npos);
  EXPECT_NE(complaint("order=sideways").find("parallel.order"), std::string::npos);
}

/// Number of values of a key that the checks accept, plus one for the default.
std::int64_t accepted(const char* key, const std::vector<std::string>& values) {
  std::int64_t count = 1;  // the plain one, which needs no key
  for (const std::string& value : values)
    count += refusal_of(test::families(), key, value).empty() ? 1 : 0;
  return count;
}

/// The layouts of the deck above by the rules in words: 8 heads are divided among tensor ranks, 4
/// layers among stages, 24 sequences among data ranks and micro-batches; positions among any number
/// of context ranks, by three methods, and a fourth if a factor of that number divides the heads.
std::int64_t legal_by_hand(int ranks) {
  std::int64_t sum = 0, alone = 0;
  for (const int tp : {1, 2, 4, 8})
    for (int cp = 1; cp <= 8; ++cp)
      for (int pp = 1; pp <= 4; ++pp)
        for (const int dp : {1, 2, 3, 4, 6, 8}) {
          if (tp * cp * pp * dp > ranks) continue;
          std::int64_t micro = 0;
          for (const int size : {1, 2, 3, 4}) micro += 24 % (dp * size) == 0 ? 1 : 0;
          const int sequence = tp > 1 ? 2 : 1;
          const bool pairs = dp > 2 && dp % 2 == 0;  // groups of two, several of them
          const int zero = dp > 1 ? 1 + 3 * (pairs ? 2 : 1) : 1;
          // In stages 2 and 3, gradients may follow the state into a file.
          const std::int64_t files = accepted("parallel.offload", {"file"});
          const std::int64_t places = zero * files + (zero - 1) / 3 * 2 * (files - 1);
          // Four schedules; interleaved also with two pieces per stage.
          const int schedule = pp == 1 ? 1 : pp == 2 ? 5 : 4;
          const int recompute = 3;
          const int group = std::gcd(8 / tp, cp), mode = cp == 1                   ? 1
                                                         : group > 1 && group < cp ? 4
                                                                                   : 3;
          // Two axes can be in two orders. Of the orders of three axes, tp-cp-dp-pp, pp-dp-cp-tp
          // and dp-tp-cp-pp, all three are different unless dp is missing.
          const int axes = (tp > 1) + (cp > 1) + (pp > 1) + (dp > 1);
          const int order = axes < 2 ? 1 : axes == 2 || dp == 1 ? 2 : 3;
          const std::int64_t plain = micro * sequence * schedule * recompute * mode;
          sum += plain * places * order;
          // Chunks of the head, data in device memory, and tiles of attention to whole sequences
          // are varied alone, with micro-batches of the deck's size.
          alone += plain / micro * (dp > 1 ? 4 : 1) * (cp == 1 ? 3 : 2);
        }
  return sum * accepted("model.tile", {"4"}) + alone;
}

TEST(VerifySpace, HoldsEveryLegalLayoutOnce) {
  for (const int ranks : {1, 2, 6, 8}) {
    const std::vector<VerifyLayout>& legal = legal_on(ranks);
    EXPECT_EQ(static_cast<std::int64_t>(legal.size()), legal_by_hand(ranks)) << ranks;
    std::set<std::string> names;
    for (const VerifyLayout& layout : legal) {
      EXPECT_LE(layout.ranks(), ranks) << layout.to_string();
      names.insert(layout.to_string());
    }
    EXPECT_EQ(names.size(), legal.size());
    if (ranks < 8) continue;
    for (const char* layout :
         {"dp=1 tp=1 pp=1 cp=1", "dp=8 tp=1 pp=1 cp=1 micro=3", "dp=3 tp=2 pp=1 cp=1 sequence=true",
          "dp=2 tp=2 pp=2 cp=1 zero=3 order=dp-tp-cp-pp", "dp=4 tp=1 pp=2 cp=1 zero=1 zero_group=2",
          "dp=1 tp=2 pp=2 cp=2 schedule=interleaved virtual_stages=2 recompute=full",
          "dp=1 tp=2 pp=1 cp=2 preload=device", "dp=2 tp=1 pp=2 cp=1 attention_chunk=5"})
      EXPECT_TRUE(names.contains(layout)) << layout;
  }
}

TEST(VerifySpace, ChunksOfTheHeadAreComparedWithThoseOfTheDeck) {
  const auto chunks = [](const std::vector<std::string>& overrides) {
    std::set<std::string> values;
    for (const VerifyLayout& layout : legal_layouts(deck(overrides), 1))
      values.insert(layout[LayoutAxis::head_chunk]);
    return values;
  };
  EXPECT_EQ(chunks({}), (std::set<std::string>{"", "5"}));
  EXPECT_EQ(chunks({"train.head_chunk=7"}), (std::set<std::string>{"", "0"}));
  std::vector<KeyProblem> problems;
  const Deck own = deck({"train.head_chunk=7", "train.attention_chunk=3", "data.preload=device"});
  const Deck plain = lay_out(own, VerifyLayout(), problems);
  EXPECT_TRUE(problems.empty()) << problems.front().text;
  EXPECT_EQ(gpt_of(plain).head_chunk, 7);
  EXPECT_EQ(gpt_of(plain).attention_chunk, 0);
  EXPECT_EQ(plain.data.preload, Preload::none);
}

TEST(VerifySpace, SameMeshInAnotherOrderIsNoOtherLayout) {
  std::set<std::string> orders;
  for (const VerifyLayout& layout : legal_on(4))
    if (layout.size(LayoutAxis::data) == 2 && layout.size(LayoutAxis::tensor) == 2)
      orders.insert(layout[LayoutAxis::order]);
  EXPECT_EQ(orders, (std::set<std::string>{"tp-cp-dp-pp", "pp-dp-cp-tp"}))
      << "dp-tp-cp-pp is the second one again";
}

TEST(VerifySpace, AllMeetsEveryTwoValuesThatGoTogether) {
  for (const int ranks : {1, 2, 6, 8}) {
    const std::vector<VerifyLayout>& legal = legal_on(ranks);
    const Covering covering = covering_order(legal, 0);
    const std::set<std::size_t> pairs = pairs_of(legal);
    EXPECT_EQ(pairs_of(covering.layouts), pairs) << ranks;
    EXPECT_EQ(covering.pairs_at, covering.layouts.size()) << "it stops as soon as it may";
    auto before = covering.layouts;
    before.pop_back();
    EXPECT_NE(pairs_of(before), pairs) << "and not later";
    // The set is the same every time, and each layout occurs at most once.
    if (ranks <= 6) {
      EXPECT_EQ(covering_order(legal, 0).layouts, covering.layouts);
    }
    std::set<std::string> names;
    for (const VerifyLayout& layout : covering.layouts) names.insert(layout.to_string());
    EXPECT_EQ(names.size(), covering.layouts.size());
  }
}

TEST(VerifySpace, SetsAreAsLargeAsTheySay) {
  const std::vector<VerifyLayout>& legal = legal_on(6);
  const LayoutSelection all = choose_layouts(deck(), 6, "all");
  const std::size_t pairs = covering_order(legal, 0).layouts.size();
  EXPECT_EQ(all.layouts.size(), std::max<std::size_t>(pairs, 150));
  EXPECT_EQ(pairs_of(all.layouts), pairs_of(legal));
  const LayoutSelection quick = choose_layouts(deck(), 6, "quick");
  EXPECT_GE(quick.layouts.size(), 30u);
  EXPECT_LT(quick.layouts.size(), 60u);
  EXPECT_EQ(values_of(quick.layouts), values_of(legal));
  const std::vector<VerifyLayout>& few = legal_on(4);
  EXPECT_EQ(choose_layouts(deck(), 4, "exhaustive").layouts.size(), few.size());
  const LayoutSelection sample = choose_layouts(deck(), 4, "exhaustive:97");
  EXPECT_EQ(sample.layouts.size(), 97u);
  EXPECT_GT(values_of(sample.layouts).size(), values_of(few).size() * 3 / 4) << "spread";
  EXPECT_EQ(choose_layouts(deck(), 4, "exhaustive:99999").layouts.size(), few.size());
  for (const char* wrong : {"exhaustive:", "exhaustive:0", "exhaustive:x", "exhaustive7"})
    EXPECT_THROW(choose_layouts(deck(), 8, wrong), DeckError) << wrong;
  const LayoutSelection listed = choose_layouts(deck(), 8, "tp=2 sequence=true,dp=2");
  ASSERT_EQ(listed.layouts.size(), 2u);
  EXPECT_EQ(listed.layouts[1].to_string(), "dp=2 tp=1 pp=1 cp=1") << "in the order given";
  EXPECT_THROW(choose_layouts(deck(), 8, "dp=5"), DeckError);
  EXPECT_THROW(choose_layouts(deck(), 8, "dp=4 tp=4"), DeckError) << "16 ranks";
  EXPECT_THROW(choose_layouts(deck(), 8, "everything"), DeckError);
}

TEST(VerifyDeck, TrainsTheSameWhateverTheDataSize) {
  std::vector<std::string> notes;
  const Deck changed =
      verify_deck(parse_deck(test::families(), R"({"data": {"train": ["no/such/file"]},
                     "optimizer": {"scale_lr": "sqrt"},
                     "train": {"precision": "bf16-mixed", "micro_batch_size": 2,
                               "grad_accum": 3}})",
                             "deck.json", {}),
                  TrainPrecision::fp64, notes);
  EXPECT_EQ(changed.train.precision, TrainPrecision::fp64);
  EXPECT_EQ(changed.device, RequestedDevice::cpu);
  EXPECT_EQ(changed.optimizer.scale_lr, RateScaling::none);
  EXPECT_EQ(changed.train.global_batch_size, 6);
  EXPECT_EQ(gpt_of(changed).vocab_size, 97);
  EXPECT_EQ(notes.size(), 2u) << "and says so";
}

}  // namespace
}  // namespace choir
