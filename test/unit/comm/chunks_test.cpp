#include "src/comm/communicator_parts.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace choir {
namespace {

TEST(Chunks, CoverEverythingOnceInOrder) {
  for (std::size_t count : {0u, 1u, 2u, 6u, 7u, 8u, 100u})
    for (std::size_t limit : {1u, 2u, 7u, 8u, 1000u}) {
      std::size_t next = 0;
      std::size_t pieces = 0;
      for_each_chunk(count, limit, [&](std::size_t offset, std::size_t length) {
        EXPECT_EQ(offset, next);
        EXPECT_GE(length, 1u);
        EXPECT_LE(length, limit);
        next = offset + length;
        ++pieces;
      });
      EXPECT_EQ(next, count);
      EXPECT_EQ(pieces, chunk_count(count, limit));
    }
}

TEST(Chunks, CountsBeyondInt) {
  constexpr std::size_t kCount = (std::size_t{5} << 32) + 3;
  EXPECT_EQ(chunk_count(kCount, std::size_t{1} << 30), 21u);
  const Chunk last = chunk_at(20, kCount, std::size_t{1} << 30);
  EXPECT_EQ(last.offset, std::size_t{5} << 32);
  EXPECT_EQ(last.count, 3u);
}

TEST(Chunks, ALimitOfZeroIsOne) {
  EXPECT_EQ(chunk_count(3, 0), 3u);
}

TEST(Chunks, SharesAreContiguousAndWhole) {
  for (std::size_t count : {0u, 1u, 15u, 16u, 17u, 1000u, 1024u})
    for (int parts : {1, 2, 3, 4, 7})
      for (std::size_t granule : {1u, 16u}) {
        std::size_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Chunk share = share_of(count, parts, part, granule);
          EXPECT_EQ(share.offset, next);
          if (share.offset + share.count < count) {
            EXPECT_EQ(share.count % granule, 0u);
          }
          next += share.count;
        }
        EXPECT_EQ(next, count) << count << " in " << parts;
      }
  EXPECT_EQ(share_of(1024, 4, 3, 16).count, 256u);
}

}  // namespace
}  // namespace choir
