// Tests of the Jinja programs that chat templates use. The expected texts were written by jinja2
// 3.1 with trim_blocks and lstrip_blocks, and are the same here.
#include <gtest/gtest.h>

#include "src/data/chat/jinja/tree.hpp"

namespace choir::jinja {
namespace {

std::string written(const std::string& source) {
  const Pairs variables{
      {"messages", List{Pairs{{"role", "user"}, {"content", "Hi"}}}},
  };
  return run(parse(source), variables);
}

struct Case {
  const char *source, *wanted;
};

TEST(Jinja, WritesWhatJinja2Writes) {
  for (const auto& [source, wanted] : std::vector<Case>{
           {"a\n", "a"},
           {"{{ 1 + 2 * 3 }} {{ -3 // 2 }} {{ 7 % 3 }} {{ 7 / 2 }}", "7 -2 1 3.5"},
           {"{{ [1, 2.5, none, true, \"it's\"] }}", "[1, 2.5, None, True, \"it's\"]"},
           {"{{ {'a': 'q\"\\n'} | tojson }}", "{\"a\": \"q\\\"\\n\"}"},
           {"{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"},
           {"{{ {'a': {'b': 1}}}}", "{'a': {'b': 1}}"},
           {"{{ 'héllo'[1:3] }} {{ 'héllo' | length }} {{ 'abc'[::-1] }} {{ [1, 2, 3][-2:] }}",
            "él 5 cba [2, 3]"},
           {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }}",
            "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b c']"},
           {"{{ missing | default('d') }}{{ '' | default('e', true) }}{{ missing }}", "de"},
           {"{% for x in range(5) if x is odd %}{{ x }}{% if not loop.last %},{% endif %}"
            "{% endfor %}",
            "1,3"},
           {"{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}"
            "{% break %}{% endif %}{{ x }}{% endfor %}",
            "13"},
           {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
           {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{% endfor %}",
            "1a12b2"},
           {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
           {"{% set n = namespace(x=1) %}{% for i in [1] %}{% set n.x = 2 %}{% endfor %}{{ n.x }}",
            "2"},
           {"{% set t %}a{{ 1 }}{% endset %}{{ t | upper }}", "A1"},
           {"{% macro m(x, n=2) %}<{{ x }}{{ n }}>{% endmacro %}{{ m(1) }}{{ m(2, n=3) }}",
            "<12><23>"},
           {"a\n    {% if true %}\n  b\n    {% endif %}\nc", "a\n  b\nc"},
           {"a  {%- if true -%}  b  {%- endif %}", "ab"},
           {"{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | "
            "join('+') }}",
            "Hi"},
           {"{{ 'x' if false else 'y' }}{{ 'z' if false }}{{ 'a' ~ 1 ~ none }}", "ya1None"},
           {"{{ 1 == 1.0 }} {{ true and 'v' }} {{ '' or 'w' }} {{ 3 not in [1, 2] }}",
            "True v w True"},
           {"{{ 'a' in 'cab' }} {{ not none is defined }} {{ messages is iterable }}",
            "True False True"},
           {"{{ ' x ' | trim ~ '|' }}{{ 'xxay'.strip('x') }}{{ 'aXb' | replace('X', '-') }}",
            "x|aya-b"},
           {"{# a comment #}\nb{{- '}}' }}", "b}}"},
       })
    EXPECT_EQ(written(source), wanted) << source;
}

TEST(Jinja, RefusesByName) {
  for (const auto& [source, part] : std::vector<Case>{
           {"a\nb\n{% macro", "line 3"},
           {"{% block x %}{% endblock %}", "the tag 'block' in line 1"},
           {"{{ 1 | nothing }}", "the filter 'nothing'"},
           {"{{ 1 is nothing }}", "the test 'nothing'"},
           {"{{ missing.member }}", "reads 'member' of 'missing'"},
           {"{{ 1 + 'a' }}", "computes 1 + 'a'"},
           {"{{ 1 / 0 }}", "divides by zero"},
           {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls macros too deeply"},
           {"{{ raise_exception('no') }}", "refuses it: no"},
           {"{% for x in messages %}", "ends without 'endfor'"},
           {"{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}",
            "a text or a list without end"},
           {"{% set n = namespace(x=[]) %}{% for i in range(300) %}{% set n.x = [n.x] %}"
            "{% endfor %}{{ n.x }}",
            "too deeply nested"},
       }) {
    try {
      written(source);
      ADD_FAILURE() << source;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(written("{{ " + std::string(100'000, '(') + " }}"), DataError);
  EXPECT_THROW(written("{{ " + std::string(100'000, '-') + "1 }}"), DataError);
}

}  // namespace
}  // namespace choir::jinja
