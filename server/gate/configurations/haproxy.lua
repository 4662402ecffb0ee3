-- Tidegate: asks the gate about each download. An answer with a lease lets the request go on to the
-- backend that has the files; any other answer goes to the client.

-- Fields of one connection, and what the gate tells HAProxy alone.
local KEPT_BACK = {
    ["connection"] = true, ["content-length"] = true, ["date"] = true, ["keep-alive"] = true,
    ["server"] = true, ["tidegate-lease"] = true, ["tidegate-range"] = true,
    ["transfer-encoding"] = true, ["x-accel-redirect"] = true,
}
local CONDITIONS = {
    "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "range",
}
local LONGEST_WAIT_MS = 3600000
-- Files that go without the gate. A new file passes it until this is written anew, and HAProxy
-- reloaded.
local SMALL = {
    __names__
}

local function each(headers, call)
    for name, values in pairs(headers) do
        for at = 0, #values do
            call(name, values[at])
        end
    end
end

core.register_action("tidegate_ask", { "http-req" }, function(txn)
    local path = txn.sf:path():gsub("%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end)
    if SMALL[path] then
        txn:set_var("txn.tidegate", "small")
        return
    end
    local headers = {}
    each(txn.http:req_get_headers(), function(name, value)
        if name ~= "content-length" and name ~= "transfer-encoding" and name ~= "expect" then
            headers[name] = headers[name] or {}
            table.insert(headers[name], value)
        end
    end)
    local answer = core.httpclient():get({
        -- In HTTP/2 a URL has scheme and host.
        url = "http://gate" .. txn.sf:pathq(), dst = "__gate__", headers = headers,
        timeout = LONGEST_WAIT_MS,
    })
    if answer == nil or answer.headers == nil or answer.headers["server"] == nil then
        txn:set_var("txn.tidegate", "absent")
        return
    end
    txn:set_priv(answer)
    local lease = answer.headers["tidegate-lease"]
    if lease == nil then
        txn:set_var("txn.tidegate", "answered")
        return
    end
    txn:set_var("txn.tidegate", "leased")
    txn:set_var("txn.tidegate_lease", lease[0])
    -- The gate has compared conditions with its own entity tag: the backend gets the range alone.
    for _, name in ipairs(CONDITIONS) do
        txn.http:req_del_header(name)
    end
    local range = answer.headers["tidegate-range"][0]
    if range ~= "" then
        txn.http:req_set_header("Range", range)
    end
    txn.http:req_set_uri(answer.headers["x-accel-redirect"][0]:sub(#"__internal__" + 1))
end)

core.register_service("tidegate_answer", "http", function(applet)
    local answer = applet:get_priv()
    applet:set_status(answer.status)
    each(answer.headers, function(name, value)
        if not KEPT_BACK[name] then
            applet:add_header(name, value)
        end
    end)
    if answer.status ~= 304 then
        applet:add_header("content-length", #answer.body)
    end
    applet:start_response()
    applet:send(answer.body)
end)

core.register_action("tidegate_fields", { "http-res" }, function(txn)
    local status = txn.f:status()
    if status == 200 or status == 206 then
        each(txn:get_priv().headers, function(name, value)
            if not KEPT_BACK[name] then
                txn.http:res_set_header(name, value)
            end
        end)
    end
end)
