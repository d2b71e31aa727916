#include "src/data/text/data_files.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::WeightsFolder;

// The meta.pkl of the characters "\n ehlo" and e with an acute accent, by Python's pickle.
constexpr const char* kMetaPickle =
    "80049571000000000000007d94288c0a766f6361625f73697a65944b078c0469746f73947d94284b00"
    "8c010a944b018c0120944b028c0165944b038c0168944b048c016c944b058c016f944b068c02c3a994"
    "758c0473746f69947d942868044b0068054b0168064b0268074b0368084b0468094b05680a4b067575"
    "2e";

TEST(NanoGptVocabulary, HasTheIdsOfItsScript) {
  const WeightsFolder folder;
  const std::string path = folder.put("meta.pkl", test::from_hex(kMetaPickle));
  const Vocabulary vocabulary = vocabulary_beside_tokens(path);
  EXPECT_EQ(vocabulary.size(), 7);
  EXPECT_EQ(vocabulary.encode("hello \u00e9\n"),
            (std::vector<std::int32_t>{3, 2, 4, 4, 5, 1, 6, 0}));
}

TEST(NanoGptVocabulary, OtherPicklesAreRefused) {
  const WeightsFolder folder;
  // {'itos': {0: 'b', 1: 'a'}}, {'itos': {0: 'ab'}} and {}
  for (const char* hex :
       {"80037d7100580400000069746f7371017d7102284b0058010000006271034b01580100000061710475732e",
        "80037d7100580400000069746f7371017d71024b0058020000006162710373732e", "80037d71002e"})
    EXPECT_THROW(nanogpt_vocabulary(folder.put("meta.pkl", test::from_hex(hex))), DataError) << hex;
}

}  // namespace
}  // namespace choir
