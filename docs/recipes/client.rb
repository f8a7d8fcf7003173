# Ruby, with the standard library: with-forgelet.sh ruby client.rb
require "json"
require "net/http"

ready = JSON.parse(File.read(ENV.fetch("FORGELET_READY_FILE")))
TOKEN = ready.fetch("root_token")

def call(request, status)
  request["PRIVATE-TOKEN"] = TOKEN
  answer = Net::HTTP.start(request.uri.host, request.uri.port) { |http| http.request(request) }
  raise "#{answer.code}: #{answer.body}" unless answer.code == status

  answer.body.to_s.empty? ? nil : JSON.parse(answer.body)
end

call(Net::HTTP::Post.new(URI("#{ready['url']}/-/testing/reset")), "204")

making = Net::HTTP::Post.new(URI("#{ready['api_url']}/projects"), "Content-Type" => "application/json")
making.body = JSON.generate(name: "hello")
project = call(making, "201")

found = call(Net::HTTP::Get.new(URI("#{ready['api_url']}/projects/#{project['id']}")), "200")
puts "made #{found['path_with_namespace']}"
