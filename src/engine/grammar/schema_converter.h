// The converter behind SchemaGrammar: one rule for each schema that it meets. One thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/grammar/grammar_text.h"
#include "engine/grammar/number_rules.h"
#include "engine/grammar/schema_merge.h"

namespace engine {

class SchemaConverter {
 public:
  // `root` outlives the converter.
  explicit SchemaConverter(const Schema& root) : root_(root) {}

  base::Result<std::string> Convert();

 private:
  using Body = base::Result<std::string>;

  // The name of a rule for values that `schema` accepts.
  Body Visit(const Schema& schema, const std::string& path);
  Body VisitKeywords(const Schema& schema, const std::string& path);
  Body VisitReference(const std::string& reference, const std::string& path);
  Body VisitAllOf(const Schema& schema, const std::string& path);
  Body VisitAnyOf(const Schema& schema, std::string_view keyword, const std::string& path);
  Body VisitValues(const Schema& schema, const std::string& path);
  Body VisitTypes(const Schema& schema, const Schema& types, const std::string& path);
  Body VisitType(const Schema& schema, std::string_view type, const std::string& path);
  // `schema` with its $ref, if any, replaced by what that points to.
  base::Result<Schema> Inlined(const Schema& schema, const std::string& path, int depth = 0);

  Body Object(const Schema& schema, const std::string& path);
  // `,`-separated members from number `first` on, each behind a comma.
  struct Member {
    std::string pair;  // "name" : value
    bool required = false;
  };
  base::Result<std::vector<Member>> Members(const Schema& schema, const std::string& path);
  std::string MembersBody(const std::vector<Member>& members, const std::string& additional);
  // A pair of a name that is none of `names` and a value of `value`; names and values without end.
  std::string AdditionalPair(const std::vector<std::string>& names, const std::string& value);
  // A key, from behind its opening quote, that is none of `names`, all of which begin with the
  // same `length` bytes.
  std::string OtherKey(const std::vector<std::string>& names, std::size_t length);
  Body Array(const Schema& schema, const std::string& path);
  Body String(const Schema& schema, const std::string& path);
  Body Number(const Schema& schema, bool whole, const std::string& path);

  base::Result<std::pair<std::size_t, std::size_t>> Counts(const Schema& schema,
                                                           const std::string& least,
                                                           const std::string& most,
                                                           const std::string& path);
  base::Result<NumberBounds> Bounds(const Schema& schema, bool whole, const std::string& path);

  // Rules that everything shares.
  std::string Space() { return text_.Add("ws", "(\" \" | \"\\n\" [ \\t]{0,32})?"); }
  std::string Character();
  std::string AnyString();
  std::string AnyValue();
  std::string Pair(const std::string& key_body, const std::string& value);

  struct Reference {
    std::string rule;
    bool done = false;
    std::size_t entered = 0;  // consumed_ when it was begun
  };

  const Schema& root_;
  GrammarText text_;
  std::map<std::string, Reference> references_;
  std::string any_value_;
  std::size_t consumed_ = 0;  // how many objects and lists are open
  int depth_ = 0;
};

}  // namespace engine
