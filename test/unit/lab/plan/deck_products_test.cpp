// Tests of the matrix products of every shipped deck on a GPU: rows that are no multiple of 16
// bytes cannot be read by its copy engine, nor with its widest loads; such products take two to
// five times as long.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/device/null_device.hpp"

#include "src/train/step/step_planner.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

constexpr std::int64_t kRow = 16;  // bytes

/// Matrix products of one step and an evaluation on one rank.
std::set<ops::Product> products_of(Deck deck) {
  // fp64 stays on the CPU.
  if (deck.train.precision == TrainPrecision::fp64)
    deck.train.precision = TrainPrecision::bf16_mixed;
  const ModelFamily& family = deck.family();
  constexpr std::int64_t kUnknown = 65;  // symbols, if the data give their number
  if (family.vocab_size(deck) == 0)
    family.vocab_size(deck) = std::max(kUnknown, family.usual_vocab_size());
  EngineOptions options = engine_options(deck, resolve_batch(deck, 1));
  options.micro_batches = 1;
  if (!family.fixed_shape())
    options.shapes = family.synthetic_batches(options.model, 1, options.micro_batch_size)->shapes();
  const NullDevice card(DeviceKind::cuda);
  return plan_step(options, Layout(), 0, 1, false, &card).products;
}

/// Products that may have odd rows, by the words of all such products of the deck.
struct Exception {
  const char* decks;  // their names begin so
  const char* words;
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"verify_", "", "their sizes are odd on purpose"},
    {"asr_", ", 4 times", "heads of 144 / 4 = 36 columns, as small models of the field have them"},
    {"fastconformer_s", ", 4 times", "heads of 176 / 4 = 44 columns, as published"},
    {"codec_istft", "f32", "a transform of 2 n real points has n + 1 bins, and n is even"},
    {"duplex_", "4012", "the code heads of 4 x (1000 + 3) columns: 1 % of the work of the 1b"},
};

const Exception* exception_for(const std::string& deck) {
  for (const Exception& exception : kExceptions)
    if (deck.starts_with(exception.decks)) return &exception;
  return nullptr;
}

/// Names operands with narrow or odd rows: "C of ...".
std::vector<std::string> complaints_of(const std::set<ops::Product>& products) {
  std::vector<std::string> all;
  for (const ops::Product& p : products)
    for (const auto& [operand, bytes] :
         {std::pair("A", p.row_bytes_of_a()), std::pair("B", p.row_bytes_of_b()),
          std::pair("C", p.row_bytes_of_c())})
      if (bytes % kRow != 0) all.push_back(fmt::format("{} of {}", operand, to_string(p)));
  return all;
}

TEST(DeckProducts, RowsAreWholePiecesOf16Bytes) {
  int decks = 0;
  std::set<std::string> excused;
  for (const auto& entry : std::filesystem::directory_iterator("inputs")) {
    if (entry.path().extension() != ".json") continue;
    ++decks;
    const std::set<ops::Product> products =
        products_of(read_deck(test::families(), entry.path(), {}));
    EXPECT_GE(products.size(), 8u) << entry.path();
    const Exception* exception = exception_for(entry.path().filename());
    for (const std::string& complaint : complaints_of(products)) {
      if (exception && complaint.find(exception->words) != std::string::npos)
        excused.insert(exception->decks);
      else
        ADD_FAILURE() << entry.path() << ": " << complaint;
    }
  }
  EXPECT_EQ(excused.size(), std::size(kExceptions)) << "an exception that nothing needs";
  EXPECT_GE(decks, 20);
}

}  // namespace
}  // namespace choir
