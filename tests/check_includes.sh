#!/bin/bash
# tests/check_includes.sh FILE...: every FILE includes the standard header of each name of the standard library that it
# uses. (That it includes what it needs of the project, the target headers_compile_alone shows.)
set -euo pipefail
exec awk '
  BEGIN {
    count = split("\
      algorithm:all_of,any_of,clamp,fill,find,find_if,is_sorted,max,max_element,min,min_element,partition_point,reverse,shuffle,sort \
      array:array atomic:atomic,memory_order_relaxed bit:bit_cast chrono:chrono,milli cmath:abs,ceil,exp,floor,isfinite,isnan,nan,sin,sqrt \
      condition_variable:condition_variable csignal:raise,sig_atomic_t,signal cstddef:byte,ptrdiff_t \
      cstdint:int8_t,int16_t,int32_t,int64_t,uint8_t,uint16_t,uint32_t,uint64_t,uintptr_t ctime:time_t cstdio:fflush,fprintf,printf,snprintf \
      cstdlib:aligned_alloc,atoi,exit,free,getenv,malloc cstring:memcmp,memcpy,memmove,memset,strcmp,strncpy deque:deque \
      exception:current_exception,exception,exception_ptr,rethrow_exception filesystem:filesystem fstream:ifstream,ofstream \
      functional:equal_to,function,greater,hash,less future:future initializer_list:initializer_list limits:numeric_limits list:list \
      map:map,multimap memory:allocator_arg,make_shared,make_unique,shared_ptr,unique_ptr,weak_ptr mutex:call_once,lock_guard,mutex,once_flag,scoped_lock,unique_lock \
      new:bad_alloc numeric:accumulate,gcd,iota optional:nullopt,optional random:minstd_rand,mt19937,mt19937_64,uniform_int_distribution,uniform_real_distribution set:multiset,set source_location:source_location span:span \
      stdexcept:invalid_argument,length_error,logic_error,out_of_range,runtime_error \
      string:getline,string,to_string string_view:string_view system_error:generic_category,system_error thread:jthread,this_thread,thread tuple:apply,tie,tuple \
      type_traits:invoke_result_t,is_convertible_v,is_same_v,is_standard_layout_v,is_void_v,remove_cvref_t,remove_reference_t,underlying_type_t unordered_map:unordered_map unordered_set:unordered_set \
      utility:exchange,forward,move,pair,swap variant:get_if,holds_alternative,variant,visit vector:vector", groups)
    for (i = 1; i <= count; ++i) {
      split(groups[i], parts, ":")
      names = split(parts[2], list, ",")
      for (k = 1; k <= names; ++k) homes[list[k]] = parts[1]
    }
    # In several of them.
    homes["size_t"] = "cstddef|cstdio|cstdlib|cstring|array|functional|map|memory|set|span|string|string_view|vector"
    homes["ssize"] = "array|iterator|map|set|span|string|string_view|vector"
    homes["get"] = "array|tuple|utility|variant"
    homes["erase"] = homes["erase_if"] = "deque|map|set|string|vector"
    homes["istream"] = "fstream|iosfwd|iostream|istream|sstream"
    homes["streambuf"] = "iosfwd|streambuf"
    homes["ostream"] = homes["ios"] = homes["streamsize"] = "fstream|iosfwd|iostream|istream|ostream|sstream"
  }
  FNR == 1 { split("", included) }
  /^ *#include </ { header = $2; gsub(/[<>]/, "", header); included[header] = 1; sub("/.*", "", header); included[header "/"] = 1 }
  {
    line = $0
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    sub(/\/\/.*/, "", line)
    while (match(line, /(std|fmt|nlohmann)::[a-z][a-z_0-9]*/)) {
      full = substr(line, RSTART, RLENGTH)
      line = substr(line, RSTART + RLENGTH)
      if ((FILENAME, full) in told) continue
      name = full
      space = sub(/^std::/, "", name) ? "std" : substr(full, 1, index(full, ":") - 1)
      if (space != "std") homes[name] = space "/"
      if (!(name in homes)) what = "is in no list of tests/check_includes.sh: add it there"
      else {
        choices = split(homes[name], choice, "|")
        what = "needs #include <" choice[1] ">"
        for (k = 1; k <= choices; ++k) if (choice[k] in included) what = ""
      }
      if (what == "") continue
      told[FILENAME, full] = failed = 1
      printf "%s:%d: %s %s\n", FILENAME, FNR, full, what
    }
  }
  END { exit failed }' "$@"
