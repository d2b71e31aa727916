// Tests of the Parquet reader on files that pyarrow wrote. The expected digests come from an
// independent reader in Python, which agrees with pyarrow and DuckDB.
#include <filesystem>

#include "src/core/text.hpp"
#include "src/data/sources/parquet.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;

std::string golden(const std::string& name) {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "golden";
  return (folder / (name + ".parquet")).string();
}

struct Read {
  std::int64_t rows = 0, texts = 0;
  std::string text;
  std::uint64_t digest() const { return fnv1a(text); }
};

Read read_column(const std::string& path, const std::string& column = "text") {
  Read all;
  const ParquetColumn found = read_parquet_footer(path, column);
  for (std::size_t group = 0; group < found.chunks.size(); ++group) {
    read_parquet_group(path, found, group, [&](std::int64_t row, std::string_view text) {
      if (text.empty()) return;
      ++all.texts;
      all.text += fmt::format("{}:{}\n", all.rows + row, text);
    });
    all.rows += found.chunks[group].rows;
  }
  return all;
}

TEST(Parquet, ReadsWhatPyarrowWrote) {
  struct Golden {
    const char* name;
    std::int64_t texts;
    std::uint64_t digest;
  };
  for (const auto& [name, texts, digest] :
       {Golden{"gzip_plain_v2", 244, 0xbfb20cfbd22813ea},
        Golden{"none_required", 283, 0x95451b12df7f7037},
        Golden{"snappy_dictionary", 255, 0x0d73673d1fe22d60},
        Golden{"snappy_large_string_fallback", 283, 0x95451b12df7f7037},
        Golden{"zstd_delta_v2", 244, 0xbfb20cfbd22813ea},
        Golden{"zstd_row_groups", 244, 0xbfb20cfbd22813ea}}) {
    const Read read = read_column(golden(name));
    EXPECT_EQ(read.rows, 300) << name;
    EXPECT_EQ(read.texts, texts) << name;
    EXPECT_EQ(read.digest(), digest) << name;
  }
  EXPECT_EQ(read_parquet_footer(golden("zstd_row_groups"), "text").chunks.size(), 4u);
}

TEST(Parquet, ColumnsThatAreNoFlatTextAreNamed) {
  const std::string path = golden("none_required");
  EXPECT_DATA_ERROR(read_parquet_footer(path, "tags"), "has a nested column 'tags'");
  EXPECT_DATA_ERROR(read_parquet_footer(path, "id"), "has values of INT64 in column 'id'");
  EXPECT_DATA_ERROR(read_parquet_footer(path, "content"), "has no column 'content'");
  try {
    read_parquet_footer(path, "content");
  } catch (const DataError& error) {
    EXPECT_EQ(error.hint(), "its columns are: id, text, tags");
  }
}

TEST(Parquet, FormatsThatAreNotReadAreNamed) {
  const ScratchFolder folder;
  const std::string good = read_bytes(golden("none_required")), path = folder / "a.parquet";
  const std::string mark("\x19\x18\x04text\x15\x00", 9);  // the path of the column and its codec
  const std::size_t codec = good.find(mark) + mark.size() - 1;
  ASSERT_LT(codec, good.size());
  for (const auto& [number, name] :
       {std::pair(3, "LZO"), std::pair(4, "Brotli"), std::pair(5, "LZ4")}) {
    std::string bytes = good;
    bytes[codec] = static_cast<char>(2 * number);
    write_bytes(path, bytes);
    EXPECT_DATA_ERROR(read_parquet_footer(path, "text"), fmt::format("the codec {} is not", name));
  }
  write_bytes(path, good.substr(0, good.size() - 1) + "E");
  EXPECT_DATA_ERROR(read_parquet_footer(path, "text"), "is encrypted");
  write_bytes(path, good.substr(0, good.size() - 7));
  EXPECT_DATA_ERROR(read_parquet_footer(path, "text"), "no Parquet file, or cut off");
  write_bytes(path, "PAR1");
  EXPECT_DATA_ERROR(read_parquet_footer(path, "text"), "no Parquet file: it has 4 bytes");
}

/// Any byte may be wrong: the file is refused, or read to some text, but never beyond its bytes.
TEST(Parquet, WrongBytesAreRefusedOrRead) {
  const ScratchFolder folder;
  const std::string path = folder / "a.parquet";
  int refused = 0, tried = 0;
  for (const char* name : {"gzip_plain_v2", "zstd_delta_v2", "snappy_dictionary"}) {
    const std::string good = read_bytes(golden(name));
    for (std::size_t at = 4; at < good.size(); at += 103) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      write_bytes(path, bytes);
      ++tried;
      try {
        static_cast<void>(read_column(path));
      } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what()).find("a.parquet"), std::string::npos) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, tried / 8) << tried;
}

}  // namespace
}  // namespace choir
