-- Asks the front end's router which replica has seen the beginning of a prompt.
-- Whatever goes wrong, the variable stays unset and the proxy balances as it does for everybody else.
local PATH = "@SOCKET@"
local BODY_MAX = 65536
local WAIT_S = 0.05

core.register_action("corral_affinity", { "http-req" }, function(txn)
    if txn.f:method() ~= "POST" then
        return
    end
    local service = txn:get_var("txn.service")
    local body = txn.f:req_body()
    if not service or not body or #body == 0 then
        return
    end
    body = string.sub(body, 1, BODY_MAX)
    local socket = core.tcp()
    socket:settimeout(WAIT_S)
    if socket:connect("unix@" .. PATH) then
        if socket:send(service .. " " .. #body .. "\n" .. body) then
            local name = socket:receive("*l")
            if name and #name > 0 then
                txn:set_var("txn.corral_server", name)
            end
        end
    end
    socket:close()
end)
