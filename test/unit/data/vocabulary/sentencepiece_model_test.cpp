// Tests of SentencePiece models of language models: byte pairs with a fallback to bytes.
#include "src/data/vocabulary/sentencepiece.hpp"

#include <gtest/gtest.h>

#include <choir_features.hpp>

#include "choir/core/error.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {
namespace {

using Kind = SentencePieceFile::Kind;
using Ids = std::vector<std::int32_t>;

// A vocabulary like that of Llama 2: <unk> 0, <s> 1, </s> 2, bytes from 3 on, then the results of
// merges.
SentencePieceFile llama_like() {
  SentencePieceFile file{.pieces = {{"<unk>", 0, Kind::unknown},
                                    {"<s>", 0, Kind::control},
                                    {"</s>", 0, Kind::control}},
                         .model = SentencePieceFile::Model::bpe,
                         .byte_fallback = true,
                         .squeezes_blanks = false,
                         .charsmap = ""};
  for (int byte = 0; byte < 256; ++byte)
    file.pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, Kind::byte});
  float score = 0;
  for (const char* text :
       {"▁t", "he", "▁the", "at", "▁c", "▁cat", "▁▁", "▁", "t", "h", "e", "a", "c"})
    file.pieces.push_back({text, score--, Kind::normal});
  return file;
}
constexpr std::int32_t kThe = 261, kAt = 262, kCat = 264, kBlanks = 265, kBlank = 266;

TEST(SentencePieceFile, GoesOutAndInAgain) {
  const SentencePieceFile file = llama_like();
  const SentencePieceFile again = SentencePieceFile::parse(file.bytes(), "again");
  ASSERT_EQ(again.pieces.size(), file.pieces.size());
  EXPECT_EQ(again.bytes(), file.bytes());
  EXPECT_EQ(again.pieces[1].kind, Kind::control);
  EXPECT_EQ(again.pieces.back().score, -12);
  EXPECT_TRUE(again.byte_fallback && again.blank_in_front && !again.squeezes_blanks);
  EXPECT_EQ(sentencepiece_bytes(sentencepiece_json(file.bytes(), true)), file.bytes());
}

// A truncated file is a shorter model or refused; a file with any byte changed is read or refused,
// and the message gives the position.
TEST(SentencePieceFile, RefusesWhatLies) {
  const std::string whole = llama_like().bytes();
  const std::string bytes = whole.substr(whole.size() - 300);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (const std::string& attacked :
         {bytes.substr(0, i), bytes.substr(0, i) + '\xff' + bytes.substr(i + 1)}) {
      try {
        SentencePieceFile::parse(attacked, "attacked");
      } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what()).find("'attacked' is not a SentencePiece model"),
                  std::string::npos);
      }
    }
  EXPECT_THROW(SentencePieceFile::parse("", "empty"), DataError);
  EXPECT_THROW(SentencePieceFile::parse("\x0a\x02\x18\x07", "kind 7"), DataError);
  EXPECT_THROW(SentencePieceFile::parse(std::string("\x0a\xff\xff\xff\xff\x0f", 6), "4 GiB"),
               DataError);
}

#ifdef CHOIR_HAVE_SENTENCEPIECE

TEST(SentencePieceFile, EncodesAsLanguageModelsDo) {
  const Vocabulary vocabulary =
      Vocabulary::from_json(sentencepiece_json(llama_like().bytes(), true), "test");
  EXPECT_EQ(vocabulary.encode("the cat"), (Ids{kThe, kCat}));
  EXPECT_EQ(vocabulary.encode(" the\ncat"), (Ids{kBlank, kThe, 13, 271, kAt}));
  EXPECT_EQ(vocabulary.encode("  "), (Ids{kBlanks, kBlank}));
  // Text that people write never becomes a control token.
  const Ids marks = vocabulary.encode("</s>");
  EXPECT_EQ(std::count(marks.begin(), marks.end(), 2), 0);
  const Ids accent = vocabulary.encode("é");
  EXPECT_EQ(accent, (Ids{kBlank, 3 + 0xc3, 3 + 0xa9}));
  EXPECT_EQ(vocabulary.decode(accent), "é");
  EXPECT_EQ(vocabulary.piece(accent[1]) + vocabulary.piece(accent[2]), "é");
  EXPECT_EQ(vocabulary.piece(1), "");
  EXPECT_EQ(vocabulary.text_start(), (Ids{1}));
  EXPECT_EQ(vocabulary.end_of_text(), 2);
  const Vocabulary bare =
      Vocabulary::from_json(sentencepiece_json(llama_like().bytes(), false), "test");
  EXPECT_TRUE(bare.text_start().empty());
  EXPECT_TRUE(Vocabulary::from_json(bare.to_json(), "again").text_start().empty());
}

// The templates of Llama 2 and Mistral put ids of control pieces between texts, each of which
// begins like a text: from version 2 on Mistral has [INST] among them, which identifies its
// template.
TEST(SentencePieceFile, ConversationsHaveItsControlPieces) {
  const Conversation talk{"here:1",
                          "",
                          {{.role = "user", .text = "the"},
                           {.role = "assistant", .text = "cat"},
                           {.role = "user", .text = "[/INST]"}}};
  SentencePieceFile file = llama_like();
  const auto count = static_cast<std::int64_t>(file.pieces.size());
  const auto opened = [&](const char* chat) {
    const Vocabulary vocabulary =
        Vocabulary::from_json(sentencepiece_json(file.bytes(), true), "test");
    // A model may have more rows than its tokenizer has pieces.
    return chat_tokenizer_of(vocabulary.to_json(), chat, vocabulary.size() + 7, "test");
  };
  const auto ids = [&](const OpenedTokenizer& tokenizer) {
    return encode_conversation(talk, {.chat = tokenizer.chat}, *tokenizer.tokenizer).ids;
  };
  const auto text = [&](const OpenedTokenizer& tokenizer, const char* what) {
    return tokenizer.tokenizer->encode(what, "test");
  };
  const auto joined = [](std::initializer_list<Ids> parts) {
    Ids all;
    for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const OpenedTokenizer v1 = opened("mistral");
  EXPECT_EQ(v1.tokenizer->vocab_size(), count) << "nothing is added to it";
  EXPECT_EQ(
      ids(v1),
      joined(
          {{1}, text(v1, "[INST] the [/INST]"), {kCat}, {2}, text(v1, "[INST] [/INST] [/INST]")}));
  const OpenedTokenizer llama = opened("llama2");
  EXPECT_EQ(ids(llama), joined({{1},
                                text(llama, "[INST] the [/INST]"),
                                text(llama, "cat "),
                                {2},
                                {1},
                                text(llama, "[INST] [/INST] [/INST]")}));
  EXPECT_EQ(opened("").chat, ChatTemplate::plain);
  // ... but the files that came with the weights may name it.
  const ChatForm known{.chat_template = "llama2", .system = "", .tokenizer = v1.json};
  EXPECT_EQ(chat_tokenizer_of(known.to_json(), "", count, "test").chat, ChatTemplate::llama2);
  EXPECT_EQ(chat_tokenizer_of(known.to_json(), "mistral", count, "test").chat,
            ChatTemplate::mistral);
  EXPECT_EQ(end_of_turn(ChatTemplate::plain, *opened("").tokenizer), 2);

  const auto first = static_cast<std::int32_t>(count);
  file.pieces.push_back({"[INST]", 0, Kind::control});
  file.pieces.push_back({"[/INST]", 0, Kind::control});
  const OpenedTokenizer v3 = opened("");
  EXPECT_EQ(v3.chat, ChatTemplate::mistral);
  const Ids said = text(v3, "[/INST]");
  EXPECT_EQ(std::count(said.begin(), said.end(), first + 1), 0) << "what people write is text";
  EXPECT_EQ(ids(v3), joined({{1, first, kThe, first + 1, kCat, 2, first}, said, {first + 1}}));
  EXPECT_THROW(chat_tokenizer_of(opened("").json, "", count + 1, "test"), DataError)
      << "more pieces than the model has rows";
}

// The text is given in parts of every size, as files are read.
TEST(SentencePieceFile, PartsAreThoseOfTheWhole) {
  const std::string text = " the cat\n  the  cat   é  tha the\tcat ";
  for (const bool across : {false, true}) {
    SentencePieceFile file = llama_like();
    if (across) file.pieces.push_back({"the▁cat", 9, Kind::user_defined});
    const Vocabulary vocabulary =
        Vocabulary::from_json(sentencepiece_json(file.bytes(), true), "test");
    const Ids whole = vocabulary.encode(text);
    for (std::size_t size = 1; size <= text.size(); ++size) {
      Ids ids;
      std::string given;
      std::size_t read = 0;
      while (read < text.size()) {
        const std::size_t offset = read - given.size();
        given += text.substr(read, size);
        read = std::min(read + size, text.size());
        given.erase(0, vocabulary.encode_part(given, read < text.size(), "parts",
                                              static_cast<std::int64_t>(offset), ids));
      }
      EXPECT_EQ(ids, whole) << size << (across ? " across words" : "");
    }
  }
}

#endif

}  // namespace
}  // namespace choir
